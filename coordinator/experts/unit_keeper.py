"""The host's backup of a run's experts: certificates, the newest attested state, and the results after it.

The keeper fetches what live holders have and verifies each certificate against its parent. It takes no part in their rounds. It
serves its copy as a holder does, so a peer that takes up an expert without holders continues from its last bytes. Its files on disk
are those of a holder. Between two visits no state is kept in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.rounds.fetching.unit_mirror import DonorAnswer, follow
from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.rounds.lineage.unit_chain import sealed_milestones
from averaging.rounds.traffic.transfer import TransferService, read_request
from averaging.state.log_entries import LOG_NAME
from coordinator.progress.lineage_trust import (
    Doubt,
    KeptLine,
    OtherLineage,
    advance_time,
    doubt_after,
    not_shown,
    of_bytes,
    shown_apart,
    to_bytes,
    word_over_sentence,
)
from coordinator.progress.unit_keeper_core import UnitClaims, askable, believable, next_visit, stand_elsewhere
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity.names import peer_name
from protocol.ids import PeerId, UnitName, short

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Network, Storage, Stream
    from averaging.rounds.lineage.unit_chain import UnitChain
    from averaging.state.state import UnitState
    from protocol.rounds.lineage.chain_link import ChainLink
    from protocol.rounds.lineage.lineage import SpineView
    from protocol.rounds.messages.requests import FetchRequest

_log = structlog.get_logger()

_LOOK_EVERY_S: Final = 0.25
"""How often to check for a unit to fetch, in seconds. Rounds that only a single holder has are fetched this soon."""

_RETRY_S: Final = 5.0
_REST_S: Final = 30.0
"""How long a unit rests after a visit that brought no new commit, in seconds. The holders lied, or their lineage is not to be
followed.
"""

_APART: Final = "apart"
"""File in a unit's folder with the state of an `OtherLineage`, for the host's next process."""

_WAYS: Final = 4
"""Fetches per visit. Rounds that finish during a fetch are fetched in the same visit, but other units must have their turn."""


@dataclass(frozen=True)
class KeptPlace:
    """One unit on the host's disk: its files, and a function that opens its chain as it was at the start, not restored.

    Attributes:
        holders_lineage: place of the holders' lineage, used while the kept lineage is preferred but lost. None in such a place itself.
    """

    storage: Storage
    chain: Callable[[], Awaitable[UnitChain]]
    holders_lineage: KeptPlace | None = None


async def _nothing_settles(_chain: UnitChain) -> None:
    pass


@dataclass(frozen=True)
class KeeperView:
    """The run as the keeper sees it, and its callbacks.

    Attributes:
        units: the units as their live holders report them; empty before the start.
        is_member: whether a peer may fetch.
        kept: called with the newest round of a unit that can be served.
        reach: makes the peers' addresses known before they are asked.
        spine: the followed lineage of the spine; None before there is one.
        commits: called with all verified commits of a unit, oldest first.
        not_counted: called with the untrusted holders of a unit whenever that set changes.
        settled: called with the chain of a unit that is kept, after each visit: its old commits may be signed as milestones.
    """

    units: Callable[[], Sequence[UnitClaims]]
    is_member: Callable[[PeerId], Awaitable[bool]]
    kept: Callable[[UnitName, int], None]
    reach: Callable[[Sequence[PeerId]], Awaitable[None]]
    spine: Callable[[], SpineView | None] = lambda: None
    commits: Callable[[UnitName, Sequence[ChainLink]], None] = lambda _unit, _links: None
    not_counted: Callable[[UnitName, frozenset[PeerId]], None] = lambda _unit, _peers: None
    settled: Callable[[UnitChain], Awaitable[None]] = _nothing_settles


class _Kept:
    """The host's copy of one unit, as others may fetch it."""

    def __init__(self, chain: UnitChain) -> None:
        tools = chain.tools
        self.line = _line_of(chain)
        kept = FollowedLine(list(chain.links), list(chain.line.certificates))
        milestones = sealed_milestones(chain)
        self.service = TransferService(
            tools.unit, tools.log, tools.generations, tools.grid, kept.after, lambda: milestones
        )


def _line_of(chain: UnitChain) -> KeptLine:
    return KeptLine(chain.head.commit, {link.commit: link.index for link in chain.links})


async def _clear(storage: Storage) -> None:
    for name in await storage.list_names(""):
        await storage.delete(name)


class UnitKeeper:
    """Run `run` as a task of the root nursery; `serve_fetch` answers on the channel "fetch". The run need not have started yet."""

    def __init__(
        self, network: Network, places: Mapping[UnitName, KeptPlace], view: KeeperView, every_rounds: int
    ) -> None:
        self._network = network
        self._places = places
        self._view = view
        self._every_rounds = every_rounds
        self._kept: dict[UnitName, _Kept] = {}
        """Each unit's preferred lineage among all that were shown."""

        self._holders_lineage: dict[UnitName, _Kept] = {}
        """For units whose kept lineage is lost: the lineage of their holders."""

        self._announced_rounds: dict[UnitName, int] = {}
        self._rests_until_s: dict[UnitName, float] = {}
        self._visited_s: dict[UnitName, float] = {}
        self._doubts: dict[UnitName, dict[PeerId, Doubt]] = {unit: {} for unit in places}
        self._apart: dict[UnitName, OtherLineage] = {}
        """Units of which a holder has shown another lineage that is not preferred to the kept one."""

        self._is_held: dict[UnitName, bool] = {}
        self._not_counted: dict[UnitName, frozenset[PeerId]] = {}
        self._opens = {unit: trio.Lock() for unit in places}
        """Held while a unit's files are changed, or opened, which also tidies them."""

    @property
    def _rounds(self) -> dict[UnitName, int]:
        return {unit: kept.line.index for unit, kept in self._kept.items()}

    async def run(self) -> None:
        """Runs until cancelled: restore from disk, then fetch from holders. Failures are logged and retried."""
        await self._restore()
        while True:
            reported = self._next()
            if reported is None:
                await trio.sleep(_LOOK_EVERY_S)
                continue
            self._visited_s[reported.unit] = trio.current_time()
            try:
                await self.visit(reported)
            except PotluckError as error:
                _log.warning("unit_not_kept", unit=reported.unit, reason=error.one_line(), retry_in_s=_RETRY_S)
                await trio.sleep(_RETRY_S)

    def _next(self) -> UnitClaims | None:
        """The next unit to fetch and the holders to ask. Updates the state of all units first."""
        now_s, everything = trio.current_time(), self._view.units()
        for reported in everything:
            self._update_trust(reported, now_s)
        units = [
            askable(reported, self._doubts[reported.unit], now_s)
            for reported in everything
            if self._rests_until_s.get(reported.unit, 0.0) <= now_s
        ]
        elsewhere = stand_elsewhere(units, {unit: kept.line for unit, kept in self._kept.items()})
        lost = {unit for unit, apart in self._apart.items() if apart.is_lost(now_s)}
        return next_visit(units, self._rounds, self._every_rounds, elsewhere | lost, self._visited_s)

    def _update_trust(self, reported: UnitClaims, now_s: float) -> None:
        """Update the trust in a unit's holders: how long claims to the kept lineage are unproven, and which holders were found
        lying.
        """
        unit, kept, apart = reported.unit, self._kept.get(reported.unit), self._apart.get(reported.unit)
        credible = believable(reported, self._doubts[unit], now_s)
        self._is_held[unit] = bool(credible.claims)
        not_counted = frozenset(reported.holders) - frozenset(credible.holders)
        if kept is not None and apart is not None:
            looked = advance_time(apart, credible.claims, kept.line, now_s)
            if looked is None:
                del self._apart[unit]
            else:
                self._apart[unit] = looked
                over = looked.claims(credible.claims, kept.line) if looked.is_word_over else ()
                if not self._not_counted.get(unit, frozenset()).issuperset(over):
                    _log.warning("holder_not_counted", reason=word_over_sentence(unit, over, looked))
                not_counted |= frozenset(over)
        self._tell(unit)
        if not_counted != self._not_counted.get(unit, frozenset()):
            self._not_counted[unit] = not_counted
            self._view.not_counted(unit, not_counted)

    async def _restore(self) -> None:
        while not self._view.units():
            await trio.sleep(_LOOK_EVERY_S)
        for unit, place in self._places.items():
            try:
                async with self._opens[unit]:
                    if LOG_NAME in await place.storage.list_names(LOG_NAME):
                        chain = await self._opened(place)
                        self._kept[unit] = _Kept(chain)
                        self._note(chain)
                        apart = of_bytes(await place.storage.read(_APART) or b"", trio.current_time())
                        if apart is not None:
                            self._apart[unit] = apart
            except PotluckError as error:
                _log.warning("unit_not_restored", unit=unit, reason=error.one_line())

    async def _opened(self, place: KeptPlace) -> UnitChain:
        chain = await place.chain()
        await chain.restore()
        return chain

    async def visit(self, reported: UnitClaims) -> None:
        """Fetch what the holders of a unit have. Raises as `follow`; results fetched before the error are kept."""
        async with self._opens[reported.unit]:
            await self._visit(reported)

    async def newest(self, unit: UnitName) -> UnitState | None:
        """The state of a unit that can be served, whole in memory, for a checkpoint. Waits for a visit in progress. None if nothing
        of the unit is kept, or the kept bytes are not what the run attests.

        Raises:
            StorageError: its files cannot be read.
        """
        async with self._opens[unit]:
            place = self._places[unit]
            if (
                unit in self._holders_lineage
                and self._given(unit) is self._holders_lineage[unit]
                and place.holders_lineage is not None
            ):
                place = place.holders_lineage
            if LOG_NAME not in await place.storage.list_names(LOG_NAME):
                return None
            chain = await self._opened(place)
        return chain.state if chain.head.index and chain.is_sound else None

    async def _visit(self, reported: UnitClaims) -> None:
        unit, place = reported.unit, self._places[reported.unit]
        chain = await self._opened_or_new(unit, place)
        await self._view.reach(reported.holders)
        before = chain.head.commit
        try:
            for _ in range(_WAYS):
                if not await self._bring(chain, askable(reported, self._doubts[unit], trio.current_time())):
                    break
        finally:
            if chain.head.index:
                self._kept[unit] = _Kept(chain)
                self._note(chain)
                await self._view.settled(chain)
            if chain.head.commit == before:
                self._rests_until_s[unit] = trio.current_time() + _REST_S
        await self._keep_apart(unit)
        if place.holders_lineage is not None:
            await self._visit_other_lineage(reported, place.holders_lineage)

    async def _opened_or_new(self, unit: UnitName, place: KeptPlace) -> UnitChain:
        try:
            return await self._opened(place)
        except PotluckError as error:
            # The unit's current holders have everything that was here, and the host's votes are not in this folder.
            _log.warning("unit_kept_anew", unit=unit, reason=error.one_line())
            await _clear(place.storage)
            return await self._opened(place)

    async def _bring(self, chain: UnitChain, reported: UnitClaims) -> bool:
        line, found = _line_of(chain), list[DonorAnswer]()
        spine = self._view.spine()
        try:
            return await follow(self._network, chain, reported.holders, may_leave=True, spine=spine, asked=found.append)
        finally:
            # Also after a bad answer of one holder: the other holders' answers count all the same.
            self._judge(reported, line, found)
            if chain.head.commit == line.head:
                self._note_shown(reported.unit, line, found)

    async def _visit_other_lineage(self, reported: UnitClaims, place: KeptPlace) -> None:
        """Fetch the holders' lineage if the kept one is lost. The kept one stays on disk: the other may be made up, and its holders
        may only be away.
        """
        unit, apart = reported.unit, self._apart.get(reported.unit)
        if apart is None:
            self._holders_lineage.pop(unit, None)
            await _clear(place.storage)
            return
        if not apart.is_lost(trio.current_time()):
            return
        chain = await self._opened_or_new(unit, place)
        others = reported.without(apart.claims(reported.claims, self._kept[unit].line))
        # Of several other lineages follow the preferred one, but none without a holder.
        is_lost = not apart.claims(others.claims, _line_of(chain))
        before, spine, found = chain.head.commit, self._view.spine(), list[DonorAnswer]()
        try:
            for _ in range(_WAYS):
                if not await follow(
                    self._network,
                    chain,
                    others.holders,
                    may_leave=True,
                    spine=spine,
                    is_lost=is_lost,
                    asked=found.append,
                ):
                    break
        finally:
            self._judge(reported, None, found)
            if chain.head.index:
                self._holders_lineage[unit] = _Kept(chain)
                if chain.head.commit != before:
                    self._note(chain)

    def _judge(self, reported: UnitClaims, line: KeptLine | None, found: Sequence[DonorAnswer]) -> None:
        """Stop asking holders for a while if they did not show what they claimed, or gave no useful answer. `line` is the kept
        lineage at the time of asking; None on the holders' own lineage, whose claims were judged already.
        """
        unit, doubts, now_s = reported.unit, self._doubts[reported.unit], trio.current_time()
        claims = {each.peer: each for each in reported.claims}
        for each in found:
            shown, lie = {link.commit: link.index for link in each.links}, ""
            if line is not None and not each.refused:
                lie = not_shown(unit, claims[each.donor], line, shown)
            if lie or each.is_lie:
                _log.warning("holder_not_counted", reason=lie or f"{peer_name(each.donor)}: {each.refused}")
            if lie or each.refused:
                is_lie = bool(lie) or each.is_lie
                doubts[each.donor] = doubt_after(doubts.get(each.donor), each.took_s, now_s, is_lie=is_lie)
            elif line is not None:
                doubts.pop(each.donor, None)

    def _note_shown(self, unit: UnitName, line: KeptLine, found: Sequence[DonorAnswer]) -> None:
        """Record lineages that were shown and not followed. Call only if none was followed."""
        for each in found:
            if each.links and each.links[0].index <= line.index:
                first, last = each.links[0].index, each.links[-1].index
                self._apart[unit] = shown_apart(self._apart.get(unit), line, first - 1, last, trio.current_time())

    async def _keep_apart(self, unit: UnitName) -> None:
        """Write the waiting time to disk. Otherwise a host that restarts often would wait forever."""
        apart, kept, storage = self._apart.get(unit), self._kept.get(unit), self._places[unit].storage
        if apart is not None and kept is not None and apart.head == kept.line.head:
            await storage.write_atomic(_APART, [to_bytes(apart)])
            return
        self._apart.pop(unit, None)
        if await storage.list_names(_APART):
            await storage.delete(_APART)

    def _given(self, unit: UnitName) -> _Kept | None:
        """The copy of a unit to serve: the lineage of its live holders, or the preferred one if nobody holds it."""
        apart, other = self._apart.get(unit), self._holders_lineage.get(unit)
        is_lost = apart is not None and apart.is_lost(trio.current_time()) and self._is_held.get(unit, False)
        return other if is_lost and other is not None else self._kept.get(unit)

    def _note(self, chain: UnitChain) -> None:
        unit, given = chain.tools.unit, self._given(chain.tools.unit)
        if given is not None and given.line.head == chain.head.commit:
            self._view.commits(unit, chain.links)
        self._tell(unit)
        _log.info("unit_kept", unit=unit, index=chain.head.index)

    def _tell(self, unit: UnitName) -> None:
        given = self._given(unit)
        if given is not None and given.line.index != self._announced_rounds.get(unit):
            self._announced_rounds[unit] = given.line.index
            self._view.kept(unit, given.line.index)

    async def serve_fetch(self, sender: PeerId, stream: Stream) -> None:
        """Answer a request for a kept unit. The answer is empty if the host does not have it.

        Raises:
            RemoteProtocolError: the sender is no member, or the request is malformed.
        """
        if not await self._view.is_member(sender):
            raise RemoteProtocolError(f"{short(sender)} is not admitted to this run", "a member", "join the run first")
        await self.answer_fetch(sender, await read_request(stream), stream)

    async def answer_fetch(self, sender: PeerId, request: FetchRequest, stream: Stream) -> None:
        """Answer a member's request, which was read from the stream already."""
        given = self._given(request.unit)
        if given is not None:
            await given.service.serve(sender, request, stream)
