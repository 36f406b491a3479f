"""The run's loss curves: the points that are shown, and held-out losses that wait until they may be (heldout_core.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from types import MappingProxyType

import structlog

from coordinator.history.past_rounds import BLOCK_ROUNDS, RECENT_ROUNDS, thinned
from coordinator.ledger.ledger import LossPoint
from coordinator.progress.heldout_core import (
    WAITS_FOR_COMMITS,
    Lineage,
    Measured,
    Place,
    Settled,
    Turns,
    heard_of,
    place_of,
    settled,
    settled_by_many,
)
from protocol.host.reports import HeldoutResult
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree

_log = structlog.get_logger()


def _newest(tree: CommitTree, head: ChainLink, live: Collection[PeerId]) -> Lineage:
    newest = islice(tree.behind(head.commit), WAITS_FOR_COMMITS + 1)
    return Lineage(frozenset(link.commit for link in newest), head.index, live)


class LossCurves:
    """`settled` decides first; `take` follows once the ledger has it. `shares`: of each expert, as in heldout_core.settled.
    `has_many`: several evaluators measure each commit (heldout_core.py), in a run without experts.
    """

    def __init__(self, shares: Sequence[float] = (), *, has_many: bool = False) -> None:
        self._shares = shares
        self._has_many = has_many
        self._shown: dict[Place, LossPoint] = {}
        self._waiting: tuple[Measured, ...] = ()
        self._refused: dict[PeerId, str] = {}
        self._thin_above = RECENT_ROUNDS

    @property
    def points(self) -> tuple[LossPoint, ...]:
        """All points that are shown."""
        return tuple(self._shown.values())

    @property
    def is_anything_waiting(self) -> bool:
        """Whether any value waits until it may be shown."""
        return bool(self._waiting)

    def restore(self, points: Sequence[LossPoint]) -> None:
        """Take the ledger's points. Of several at one place, as older releases recorded them, the first stands."""
        for point in points:
            self._shown.setdefault(place_of(point), point)

    def heard(
        self,
        peer: PeerId,
        results: Sequence[HeldoutResult],
        link_of: Callable[[CommitId], ChainLink | None],
        turns: Turns,
    ) -> Sequence[Measured]:
        """The values of a peer's results that may be shown, now or later. A value that it may not measure is refused and logged.
        Results about commits that are not verified are left out: `link_of` has none of them.
        """
        values: list[Measured] = []
        refused = ""
        for result in results:
            link = link_of(result.commit)
            if link is not None:
                found = heard_of(peer, result, link, turns)
                values += found.values
                refused = refused or found.refused
        if refused and self._refused.get(peer) != refused:
            self._refused[peer] = refused
            _log.warning("heldout_refused", reason=refused)
        return values

    def settled(
        self, fresh: Sequence[Measured], tree: CommitTree, head: ChainLink, live: Collection[PeerId]
    ) -> Settled:
        """The points to show with these values and those that wait, while `head` is followed. Changes nothing."""
        values = (*self._waiting, *fresh)
        if not values:
            return Settled()
        shown = MappingProxyType(self._shown)
        if self._has_many:
            return settled_by_many(values, shown, _newest(tree, head, live))
        followed = {tree.root, *(node.link.commit for node in tree.path(tree.root, head.commit) or ())}
        return settled(values, shown, Lineage(followed, head.index, live), self._shares)

    def taken_back(self, head: ChainLink) -> Settled:
        """The points without those of rounds that a rewind takes back; all of them for another head. Changes nothing."""
        gone = tuple(each for each in self.points if head.rewind and each.index >= head.index)
        return Settled(replaced=gone, waiting=self._waiting)

    def take(self, now: Settled, others: Sequence[LossPoint] = ()) -> None:
        """Take over what was decided, and points of other curves."""
        for point in now.replaced:
            self._shown.pop(place_of(point), None)
        for point in now.added:
            self._shown[place_of(point)] = point
        for point in others:
            self._shown.setdefault(place_of(point), point)
        self._waiting = now.waiting
        if len(self._shown) > self._thin_above:
            head_index = max(point.index for point in self._shown.values())
            self._shown = {place_of(point): point for point in thinned(self._shown.values(), head_index)}
            self._thin_above = len(self._shown) + BLOCK_ROUNDS
