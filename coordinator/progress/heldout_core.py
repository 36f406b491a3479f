"""Points of the held-out curves, made from the peers' measurements. A run of experts has one curve each and one of the whole. Pure.

A value counts from the peer whose turn it is (protocol/rounds/lineage/evaluators.py). The value of a stand-in waits until those
before it are not live, or were silent for two further commits. It never takes the place of a value of theirs.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.ledger.ledger import LossPoint
from protocol.host.reports import HeldoutResult
from protocol.ids import CommitId, PeerId, RunId, UnitName, short
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.evaluators import NUM_EVALUATORS, evaluator_order
from protocol.tensors.expert_schema import expert_unit

WHOLE: Final = "heldout"
"""Kind of the points of the whole model: each document is evaluated by its own expert."""

PROSE: Final = "prose"

STAND_IN_AFTER_COMMITS: Final = 2
"""So many further commits after, the value of a stand-in is shown although the peers before it are live."""

WAITS_FOR_COMMITS: Final = 64
"""A value of a commit that is not followed is dropped when the head is so many commits further."""

MAX_WAITING: Final = 64
"""Values of one peer that may wait. The oldest are dropped."""


def expert_kind(expert: int) -> str:
    """Kind of the points of one expert, evaluated on its own documents."""
    return f"{WHOLE} {expert_unit(expert)}"


# --- turns ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turns:
    """The peers that can measure, for their order.

    Attributes:
        holders: live holders of each expert; empty in a run without experts.
        last_stage: in a pipeline run, the unit whose replicas measure. Its live holders are `stage_holders`.
    """

    run_id: RunId
    holders: Sequence[Collection[PeerId]] = ()
    last_stage: UnitName | None = None
    stage_holders: Collection[PeerId] = ()

    def ahead(self, peer: PeerId, link: ChainLink, expert: int | None) -> tuple[PeerId, ...] | None:
        """The peers before this one in the order of a commit, or of an expert at that commit; None if it is not in the order."""
        unit, peers = link.unit, frozenset(link.roster)
        if expert is not None:
            unit, peers = expert_unit(expert), peers.intersection(self.holders[expert])
        elif self.last_stage is not None:
            unit, peers = self.last_stage, frozenset(self.stage_holders)
        order = evaluator_order(self.run_id, unit, link.index, peers)
        return order[: order.index(peer)] if peer in order else None


@dataclass(frozen=True, slots=True)
class Measured:
    """One value, in nats per byte, and the peers whose values of the same come before it."""

    kind: str
    link: ChainLink
    nats: float
    peer: PeerId
    ahead: tuple[PeerId, ...]

    @property
    def point(self) -> LossPoint:
        """The point of its curve. Index and tokens are those of the verified commit."""
        return LossPoint(self.kind, self.link.index, self.link.total_tokens, self.nats, self.peer)


@dataclass(frozen=True, slots=True)
class Heard:
    """The values of a result, and why some of it is refused; empty if nothing is."""

    values: tuple[Measured, ...]
    refused: str = ""


def heard_of(peer: PeerId, result: HeldoutResult, link: ChainLink, turns: Turns) -> Heard:
    """The values of a peer's result about a verified commit, those that it may measure.

    With experts: one for each expert that the result names. Without: one of the whole. In both cases one of prose, if it has one.
    """
    named: list[tuple[str, float, int | None]] = []
    if turns.holders:
        of_experts = [(e, nats) for e, nats in result.of_experts if e < len(turns.holders)]
        named += [(expert_kind(expert), nats, expert) for expert, nats in of_experts]
    else:
        named += [(WHOLE, result.nats, None)]
    if result.prose_nats is not None:
        named += [(PROSE, result.prose_nats, None)]
    places = [(kind, nats, turns.ahead(peer, link, expert)) for kind, nats, expert in named]
    values = tuple(Measured(kind, link, nats, peer, ahead) for kind, nats, ahead in places if ahead is not None)
    if len(values) == len(places):
        return Heard(values)
    refused = f"{short(peer)} measured commit {link.index}, {short(link.commit)}, and is none of those that may; it is not shown"
    return Heard(values, refused)


# --- curves ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lineage:
    """The followed commits, the index of their head, and the peers that are live now."""

    commits: Collection[CommitId]
    head_index: int
    live: Collection[PeerId]

    def may_show(self, value: Measured) -> bool:
        """Whether those before this value have had their time."""
        is_over = self.head_index >= value.link.index + STAND_IN_AFTER_COMMITS
        return is_over or not any(peer in self.live for peer in value.ahead)


Place = tuple[str, int, int]
"""Kind, tokens and index of a point."""


def place_of(point: LossPoint) -> Place:
    """The place of a point; one point stands at each."""
    return point.kind, point.tokens, point.index


@dataclass(frozen=True, slots=True)
class Settled:
    """The points to show from now on, those that they replace, and the values that still wait."""

    added: tuple[LossPoint, ...] = ()
    replaced: tuple[LossPoint, ...] = ()
    waiting: tuple[Measured, ...] = ()


def settled(
    values: Sequence[Measured], shown: Mapping[Place, LossPoint], lineage: Lineage, shares: Sequence[float]
) -> Settled:
    """Decide which values are shown now.

    Args:
        values: all that wait, in the order in which they came.
        shown: the points recorded so far.
        shares: fraction of the held-out bytes of each expert, summing to 1; empty in a run without experts. Once all experts have a
            point at a commit, the whole has one, too: their mean weighted by the shares.
    """
    draft = _Draft(shown)
    waiting: dict[tuple[str, CommitId, PeerId], Measured] = {}
    for value in sorted(values, key=lambda value: (value.link.index, len(value.ahead))):
        standing = draft.at(place_of(value.point))
        if standing is not None and standing.peer in (value.peer, *value.ahead):
            continue
        if value.link.commit in lineage.commits and lineage.may_show(value):
            draft.put(value.point)
            draft.put_whole(value.point, shares)
        elif value.link.index > lineage.head_index - WAITS_FOR_COMMITS:
            waiting.setdefault((value.kind, value.link.commit, value.peer), value)
    return Settled(tuple(draft.added.values()), tuple(draft.replaced.values()), _bounded(tuple(waiting.values())))


def _bounded(waiting: tuple[Measured, ...]) -> tuple[Measured, ...]:
    """At most MAX_WAITING values of each peer; a peer alone loses by sending more."""
    kept: dict[PeerId, int] = {}
    newest: list[Measured] = []
    for value in reversed(waiting):
        kept[value.peer] = kept.get(value.peer, 0) + 1
        if kept[value.peer] <= MAX_WAITING:
            newest.append(value)
    return tuple(reversed(newest))


@dataclass(slots=True)
class _Draft:
    """The points as they will be."""

    shown: Mapping[Place, LossPoint]
    added: dict[Place, LossPoint] = field(default_factory=dict)
    replaced: dict[Place, LossPoint] = field(default_factory=dict)

    def at(self, place: Place) -> LossPoint | None:
        return self.added.get(place) or self.shown.get(place)

    def put(self, point: LossPoint) -> None:
        place = place_of(point)
        if (standing := self.shown.get(place)) is not None:
            self.replaced[place] = standing
        self.added[place] = point

    def put_whole(self, point: LossPoint, shares: Sequence[float]) -> None:
        """The whole anew from its experts, after one of them has a new point."""
        if not shares or point.kind == PROSE:
            return
        each = [self.at((expert_kind(expert), point.tokens, point.index)) for expert in range(len(shares))]
        parts = [share * found.nats for share, found in zip(shares, each, strict=True) if found is not None]
        if len(parts) == len(shares):
            self.put(LossPoint(WHOLE, point.index, point.tokens, sum(parts), point.peer))


# --- several evaluators ---------------------------------------------------------------------------------------------------------

Voices = Mapping[Place, Mapping[PeerId, Measured]]
"""The values that count at each place of a curve, by evaluator."""


def voices_of(values: Sequence[Measured], lineage: Lineage) -> Voices:
    """The values of evaluators that have a seat at a commit of this lineage; of several of one evaluator the last."""
    found: dict[Place, dict[PeerId, Measured]] = {}
    for value in values:
        num_ahead = sum(peer in lineage.live for peer in value.ahead)
        if value.link.commit in lineage.commits and num_ahead < NUM_EVALUATORS:
            found.setdefault(place_of(value.point), {})[value.peer] = value
    return found


def settled_by_many(values: Sequence[Measured], shown: Mapping[Place, LossPoint], lineage: Lineage) -> Settled:
    """The points to show now, those that they replace, and the values that stay for later.

    Args:
        values: all that are kept, in the order in which they came.
        shown: the points recorded so far.
    """
    added, replaced = list[LossPoint](), list[LossPoint]()
    for place, by_peer in voices_of(values, lineage).items():
        first = min(by_peer.values(), key=lambda value: len(value.ahead))
        nats = statistics.median_low(value.nats for value in by_peer.values())
        point = LossPoint(first.kind, first.link.index, first.link.total_tokens, nats, first.peer, len(by_peer))
        standing = shown.get(place)
        if standing is not None and (standing == point or standing.voices > point.voices):
            continue  # an earlier process of the host may have heard more evaluators than tell it again
        added.append(point)
        if standing is not None:
            replaced.append(standing)
    oldest = lineage.head_index - WAITS_FOR_COMMITS
    newest = {(value.kind, value.link.commit, value.peer): value for value in values if value.link.index > oldest}
    return Settled(tuple(added), tuple(replaced), _bounded(tuple(newest.values())))
