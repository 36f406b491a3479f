"""The experts of a run as the host keeps them: certificates, the newest attested state, and the results after it.

It fetches from the live holders what they have, verifies each certificate on the one before it, and takes no part in their rounds. It
gives on what it has as a holder does, so a peer that takes up an expert whose holders are all away goes on from the bytes that they
had. What lies on the disk is what a holder's folder has; between two visits no state is held in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.rounds.fetching.unit_mirror import DonorAnswer, trail
from averaging.rounds.traffic.transfer import TransferService, read_request
from averaging.state.unit_log import LOG_NAME
from coordinator.progress.lineage_trust import (
    Doubt,
    KeptLine,
    OtherLineage,
    doubt_after,
    looked_apart,
    not_shown,
    of_bytes,
    shown_apart,
    to_bytes,
    word_over_sentence,
)
from coordinator.progress.unit_keeper_core import UnitLook, askable, believable, next_visit, stand_elsewhere
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, UnitName, short

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Network, Storage, Stream
    from averaging.rounds.lineage.unit_chain import UnitChain
    from averaging.state.state import UnitState
    from protocol.rounds.lineage.chain import ChainLink
    from protocol.rounds.lineage.lineage import SpineView

_log = structlog.get_logger()

_LOOK_EVERY_S: Final = 0.25
"""What a single holder told of is fetched so soon."""

_RETRY_S: Final = 5.0
_REST_S: Final = 30.0
"""Where a visit brought nothing of what holders told of: it was a lie, or lies on a lineage that is not to be followed."""

_APART: Final = "apart"
"""In a unit's folder: how long its holders have been on another lineage, for the next process of the host."""

_WAYS: Final = 4
"""Rounds that come while a visit fetches those before them are fetched with it, before any report tells of them; so many times, for
others are to be visited, too.
"""


@dataclass(frozen=True)
class KeptPlace:
    """One unit on the host's disk: its files, and its chain on them as of the start of a process, not restored.

    Attributes:
        beside: where the lineage of its holders is kept while that is given on though the kept one is preferred to it; the same for
            all that is not of such a place.
    """

    storage: Storage
    chain: Callable[[], Awaitable[UnitChain]]
    beside: KeptPlace | None = None


@dataclass(frozen=True)
class KeeperView:
    """What the keeper is told of the run, and tells.

    Attributes:
        looks: the units as their live holders tell of them; none before the start.
        is_member: whether a peer may be given anything.
        kept: hears which round of a unit can be given on.
        reach: makes known where peers listen, before they are asked.
        spine: the followed lineage of the unit that decides for the run; None while there is none.
        commits: hears all commits of a unit that are here, verified, the oldest first.
        not_counted: hears of a unit's holders whose word about it does not count, whenever others do not.
    """

    looks: Callable[[], Sequence[UnitLook]]
    is_member: Callable[[PeerId], Awaitable[bool]]
    kept: Callable[[UnitName, int], None]
    reach: Callable[[Sequence[PeerId]], Awaitable[None]]
    spine: Callable[[], SpineView | None] = lambda: None
    commits: Callable[[UnitName, Sequence[ChainLink]], None] = lambda _unit, _links: None
    not_counted: Callable[[UnitName, frozenset[PeerId]], None] = lambda _unit, _peers: None


class _Kept:
    """What is here of one unit, as others may ask for it."""

    def __init__(self, chain: UnitChain) -> None:
        tools = chain.tools
        self._commits = tuple(link.commit for link in chain.links)
        self._certificates = tuple(chain.certificates)
        self.line = _line_of(chain)
        self.service = TransferService(tools.unit, tools.log, tools.generations, tools.grid, self._after)

    def _after(self, known: Sequence[CommitId]) -> Sequence[bytes]:
        wanted = set(known)
        for place in range(len(self._commits) - 1, -1, -1):
            if self._commits[place] in wanted:
                return self._certificates[place:]
        return ()


def _line_of(chain: UnitChain) -> KeptLine:
    return KeptLine(chain.head.commit, {link.commit: link.index for link in chain.links})


async def _clear(storage: Storage) -> None:
    for name in await storage.list_names(""):
        await storage.delete(name)


class UnitKeeper:
    """Run `run` as a task of the root nursery, once the run's start may be known; `serve_fetch` answers on the channel "fetch"."""

    def __init__(
        self, network: Network, places: Mapping[UnitName, KeptPlace], view: KeeperView, every_rounds: int
    ) -> None:
        self._network = network
        self._places = places
        self._view = view
        self._every_rounds = every_rounds
        self._kept: dict[UnitName, _Kept] = {}
        """The lineage of each unit that is preferred to all others that were shown."""

        self._beside: dict[UnitName, _Kept] = {}
        """Of the units whose kept lineage is with nobody any more: that of their holders."""

        self._told_rounds: dict[UnitName, int] = {}
        self._rests_until_s: dict[UnitName, float] = {}
        self._visited_s: dict[UnitName, float] = {}
        self._doubts: dict[UnitName, dict[PeerId, Doubt]] = {unit: {} for unit in places}
        self._apart: dict[UnitName, OtherLineage] = {}
        """The units of which a holder has shown another lineage, which is not preferred to what is kept."""

        self._is_held: dict[UnitName, bool] = {}
        self._not_counted: dict[UnitName, frozenset[PeerId]] = {}
        self._opens = {unit: trio.Lock() for unit in places}
        """Held while a unit's files are opened, which tidies them, or change."""

    @property
    def _rounds(self) -> dict[UnitName, int]:
        return {unit: kept.line.index for unit, kept in self._kept.items()}

    async def run(self) -> None:
        """For ever: what is on the disk first, then what the holders have. What fails is logged and tried again."""
        await self._restore()
        while True:
            look = self._next()
            if look is None:
                await trio.sleep(_LOOK_EVERY_S)
                continue
            self._visited_s[look.unit] = trio.current_time()
            try:
                await self.visit(look)
            except PotluckError as error:
                _log.warning("unit_not_kept", unit=look.unit, reason=error.one_line(), retry_in_s=_RETRY_S)
                await trio.sleep(_RETRY_S)

    def _next(self) -> UnitLook | None:
        """Which unit is to be fetched from whom now; what all say is looked at first."""
        now_s, everything = trio.current_time(), self._view.looks()
        for look in everything:
            self._look_at(look, now_s)
        looks = [
            askable(look, self._doubts[look.unit], now_s)
            for look in everything
            if self._rests_until_s.get(look.unit, 0.0) <= now_s
        ]
        elsewhere = stand_elsewhere(looks, {unit: kept.line for unit, kept in self._kept.items()})
        lost = {unit for unit, apart in self._apart.items() if apart.is_lost(now_s)}
        return next_visit(looks, self._rounds, self._every_rounds, elsewhere | lost, self._visited_s)

    def _look_at(self, look: UnitLook, now_s: float) -> None:
        """Let time count for whoever says that it stands on what is kept, and for whoever was found lying."""
        unit, kept, apart = look.unit, self._kept.get(look.unit), self._apart.get(look.unit)
        credible = believable(look, self._doubts[unit], now_s)
        self._is_held[unit] = bool(credible.told)
        not_counted = frozenset(look.holders) - frozenset(credible.holders)
        if kept is not None and apart is not None:
            looked = looked_apart(apart, credible.told, kept.line, now_s)
            if looked is None:
                del self._apart[unit]
            else:
                self._apart[unit] = looked
                over = looked.claims(credible.told, kept.line) if looked.is_word_over else ()
                if not self._not_counted.get(unit, frozenset()).issuperset(over):
                    _log.warning("holder_not_counted", reason=word_over_sentence(unit, over, looked))
                not_counted |= frozenset(over)
        self._tell(unit)
        if not_counted != self._not_counted.get(unit, frozenset()):
            self._not_counted[unit] = not_counted
            self._view.not_counted(unit, not_counted)

    async def _restore(self) -> None:
        while not self._view.looks():
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

    async def visit(self, look: UnitLook) -> None:
        """Fetch what the holders of a unit have. Raises as `trail`; what came before that is kept."""
        async with self._opens[look.unit]:
            await self._visit(look)

    async def newest(self, unit: UnitName) -> UnitState | None:
        """The state of a unit as it can be given on, whole in memory, for a checkpoint; waits for a visit that is under way. None
        where nothing is kept of it, or what is kept is not what the run attests.

        Raises:
            StorageError: its files cannot be read.
        """
        async with self._opens[unit]:
            place = self._places[unit]
            if unit in self._beside and self._given(unit) is self._beside[unit] and place.beside is not None:
                place = place.beside
            if LOG_NAME not in await place.storage.list_names(LOG_NAME):
                return None
            chain = await self._opened(place)
        return chain.state if chain.head.index and chain.is_sound else None

    async def _visit(self, look: UnitLook) -> None:
        unit, place = look.unit, self._places[look.unit]
        chain = await self._opened_or_new(unit, place)
        await self._view.reach(look.holders)
        before = chain.head.commit
        try:
            for _ in range(_WAYS):
                if not await self._bring(chain, askable(look, self._doubts[unit], trio.current_time())):
                    break
        finally:
            if chain.head.index:
                self._kept[unit] = _Kept(chain)
                self._note(chain)
            if chain.head.commit == before:
                self._rests_until_s[unit] = trio.current_time() + _REST_S
        await self._keep_apart(unit)
        if place.beside is not None:
            await self._visit_beside(look, place.beside)

    async def _opened_or_new(self, unit: UnitName, place: KeptPlace) -> UnitChain:
        try:
            return await self._opened(place)
        except PotluckError as error:
            # whoever holds the unit now has all that was here, and no vote of ours lies there
            _log.warning("unit_kept_anew", unit=unit, reason=error.one_line())
            await _clear(place.storage)
            return await self._opened(place)

    async def _bring(self, chain: UnitChain, look: UnitLook) -> bool:
        line, found = _line_of(chain), list[DonorAnswer]()
        spine = self._view.spine()
        try:
            return await trail(self._network, chain, look.holders, may_leave=True, spine=spine, asked=found.append)
        finally:
            # also where one of them gave no good answer: that must not keep the others' from being counted
            self._judge(look, line, found)
            if chain.head.commit == line.head:
                self._note_shown(look.unit, line, found)

    async def _visit_beside(self, look: UnitLook, place: KeptPlace) -> None:
        """The lineage of the holders, where the kept one is with nobody any more. That one stays here: who showed the other may have
        made it up, and its holders may only have been away.
        """
        unit, apart = look.unit, self._apart.get(look.unit)
        if apart is None:
            self._beside.pop(unit, None)
            await _clear(place.storage)
            return
        if not apart.is_lost(trio.current_time()):
            return
        chain = await self._opened_or_new(unit, place)
        others = look.without(apart.claims(look.told, self._kept[unit].line))
        # of several lineages beside the kept one the preferred, but none on which nobody stands
        is_lost = not apart.claims(others.told, _line_of(chain))
        before, spine, found = chain.head.commit, self._view.spine(), list[DonorAnswer]()
        try:
            for _ in range(_WAYS):
                if not await trail(
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
            self._judge(look, None, found)
            if chain.head.index:
                self._beside[unit] = _Kept(chain)
                if chain.head.commit != before:
                    self._note(chain)

    def _judge(self, look: UnitLook, line: KeptLine | None, found: Sequence[DonorAnswer]) -> None:
        """Whoever was asked and did not show what it tells of, or was of no use, is left alone for a while. `line`: what was kept when
        they were asked; None where that was shown before.
        """
        unit, doubts, now_s = look.unit, self._doubts[look.unit], trio.current_time()
        told = {each.peer: each for each in look.told}
        for each in found:
            shown, lie = {link.commit: link.index for link in each.links}, ""
            if line is not None and not each.refused:
                lie = not_shown(unit, told[each.donor], line, shown)
            if lie or each.is_lie:
                _log.warning("holder_not_counted", reason=lie or f"{peer_name(each.donor)}: {each.refused}")
            if lie or each.refused:
                is_lie = bool(lie) or each.is_lie
                doubts[each.donor] = doubt_after(doubts.get(each.donor), each.took_s, now_s, is_lie=is_lie)
            elif line is not None:
                doubts.pop(each.donor, None)

    def _note_shown(self, unit: UnitName, line: KeptLine, found: Sequence[DonorAnswer]) -> None:
        """What was shown and is not followed, for nothing was."""
        for each in found:
            if each.links and each.links[0].index <= line.index:
                first, last = each.links[0].index, each.links[-1].index
                self._apart[unit] = shown_apart(self._apart.get(unit), line, first - 1, last, trio.current_time())

    async def _keep_apart(self, unit: UnitName) -> None:
        """A host that restarts time and again would wait for ever, were what it has waited not on its disk."""
        apart, kept, storage = self._apart.get(unit), self._kept.get(unit), self._places[unit].storage
        if apart is not None and kept is not None and apart.head == kept.line.head:
            await storage.write_atomic(_APART, [to_bytes(apart)])
            return
        self._apart.pop(unit, None)
        if await storage.list_names(_APART):
            await storage.delete(_APART)

    def _given(self, unit: UnitName) -> _Kept | None:
        """What is given on of a unit: what its live holders go on from, and, where nobody holds it, what is preferred."""
        apart, beside = self._apart.get(unit), self._beside.get(unit)
        is_lost = apart is not None and apart.is_lost(trio.current_time()) and self._is_held.get(unit, False)
        return beside if is_lost and beside is not None else self._kept.get(unit)

    def _note(self, chain: UnitChain) -> None:
        unit, given = chain.tools.unit, self._given(chain.tools.unit)
        if given is not None and given.line.head == chain.head.commit:
            self._view.commits(unit, chain.links)
        self._tell(unit)
        _log.info("unit_kept", unit=unit, index=chain.head.index)

    def _tell(self, unit: UnitName) -> None:
        given = self._given(unit)
        if given is not None and given.line.index != self._told_rounds.get(unit):
            self._told_rounds[unit] = given.line.index
            self._view.kept(unit, given.line.index)

    async def serve_fetch(self, sender: PeerId, stream: Stream) -> None:
        """Somebody asks for what is kept; what is not here is answered by an empty end.

        Raises:
            RemoteProtocolError: the sender is no member, or asks for nothing that is understood.
        """
        if not await self._view.is_member(sender):
            raise RemoteProtocolError(f"{short(sender)} is not admitted to this run", "a member", "join the run first")
        request = await read_request(stream)
        given = self._given(request.unit)
        if given is not None:
            await given.service.serve(sender, request, stream)
