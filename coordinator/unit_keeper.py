"""The experts of a run as the host keeps them: certificates, the newest attested state, and the results after it.

It fetches from the live holders what they have, verifies each certificate on the one before it, and takes no part in their rounds. It
gives on what it has as a holder does, so a peer that takes up an expert whose holders are all away goes on from the bytes that they
had. What lies on the disk is what a holder's folder has; between two visits no state is held in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.rounds.trailing import trail
from averaging.rounds.transfer import TransferService, read_request
from averaging.unit_log import LOG_NAME
from coordinator.unit_keeper_core import UnitLook, is_lost, next_visit, stands_apart, still_apart
from protocol.coordination import NO_COMMIT
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.ids import CommitId, PeerId, UnitName, short

if TYPE_CHECKING:
    from averaging.network.seams import Network, Storage, Stream
    from averaging.rounds.unit import UnitChain
    from averaging.state import UnitState
    from protocol.rounds.chain import ChainLink
    from protocol.rounds.lineage import SpineView

_log = structlog.get_logger()

_LOOK_EVERY_S: Final = 0.25
"""What a single holder told of is fetched so soon."""

_RETRY_S: Final = 5.0
_REST_S: Final = 30.0
"""Where a visit brought nothing of what holders told of: it was a lie, or lies on a lineage that is not to be followed."""

_WAYS: Final = 4
"""Rounds that come while a visit fetches those before them are fetched with it, before any report tells of them; so many times, for
others are to be visited, too.
"""


@dataclass(frozen=True)
class KeptPlace:
    """One unit on the host's disk: its files, and its chain on them as of the start of a process, not restored."""

    storage: Storage
    chain: Callable[[], Awaitable[UnitChain]]


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
    """

    looks: Callable[[], Sequence[UnitLook]]
    is_member: Callable[[PeerId], Awaitable[bool]]
    kept: Callable[[UnitName, int], None]
    reach: Callable[[Sequence[PeerId]], Awaitable[None]]
    spine: Callable[[], SpineView | None] = lambda: None
    commits: Callable[[UnitName, Sequence[ChainLink]], None] = lambda _unit, _links: None


class _Kept:
    """What is here of one unit, as others may ask for it."""

    def __init__(self, chain: UnitChain) -> None:
        tools = chain.tools
        self._commits = tuple(link.commit for link in chain.links)
        self._known = frozenset((*self._commits, NO_COMMIT))
        self._certificates = tuple(chain.certificates)
        self.index = chain.head.index
        self.service = TransferService(tools.unit, tools.log, tools.generations, tools.grid, self._after)

    def has(self, commit: CommitId) -> bool:
        """Whether a commit is of the lineage that is kept."""
        return commit in self._known

    def _after(self, known: Sequence[CommitId]) -> Sequence[bytes]:
        wanted = set(known)
        for place in range(len(self._commits) - 1, -1, -1):
            if self._commits[place] in wanted:
                return self._certificates[place:]
        return ()


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
        self._rests_until_s: dict[UnitName, float] = {}
        self._apart_since_s: dict[UnitName, float] = {}
        """Since when each unit's holders have been found on another lineage, which is not preferred to what is kept."""

        self._opens = {unit: trio.Lock() for unit in places}
        """Held while a unit's files are opened, which tidies them, or change."""

    @property
    def _rounds(self) -> dict[UnitName, int]:
        return {unit: kept.index for unit, kept in self._kept.items()}

    async def run(self) -> None:
        """For ever: what is on the disk first, then what the holders have. What fails is logged and tried again."""
        await self._restore()
        while True:
            now_s = trio.current_time()
            everything = self._view.looks()
            self._apart_since_s = still_apart(self._apart_since_s, everything, self._has)
            looks = [look for look in everything if self._rests_until_s.get(look.unit, 0.0) <= now_s]
            look = next_visit(looks, self._rounds, self._every_rounds, self._elsewhere(looks))
            if look is None:
                await trio.sleep(_LOOK_EVERY_S)
                continue
            try:
                await self.visit(look)
            except PotluckError as error:
                _log.warning("unit_not_kept", unit=look.unit, reason=error.one_line(), retry_in_s=_RETRY_S)
                await trio.sleep(_RETRY_S)

    def _elsewhere(self, looks: Sequence[UnitLook]) -> frozenset[UnitName]:
        """The units whose holders stand on a commit that is not of the lineage that is kept."""
        return frozenset(look.unit for look in looks if not self._has(look.unit, look.commit))

    def _has(self, unit: UnitName, commit: CommitId) -> bool:
        kept = self._kept.get(unit)
        return kept is None or kept.has(commit)

    async def _restore(self) -> None:
        while not self._view.looks():
            await trio.sleep(_LOOK_EVERY_S)
        for unit, place in self._places.items():
            try:
                async with self._opens[unit]:
                    if LOG_NAME in await place.storage.list_names(LOG_NAME):
                        self._note(await self._opened(place))
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
        place = self._places[unit]
        async with self._opens[unit]:
            if LOG_NAME not in await place.storage.list_names(LOG_NAME):
                return None
            chain = await self._opened(place)
        return chain.state if chain.head.index and chain.is_sound else None

    async def _visit(self, look: UnitLook) -> None:
        place = self._places[look.unit]
        try:
            chain = await self._opened(place)
        except PotluckError as error:
            # whoever holds the unit now has all that was here, and no vote of ours lies there
            _log.warning("unit_kept_anew", unit=look.unit, reason=error.one_line())
            await _clear(place.storage)
            chain = await self._opened(place)
        await self._view.reach(look.holders)
        before = chain.head.commit
        apart, now_s = self._apart_since_s, trio.current_time()
        lost = is_lost(apart.get(look.unit), now_s)
        bring = partial(trail, self._network, chain, look.holders, may_leave=True, is_lost=lost)
        try:
            for _ in range(_WAYS):
                if not await bring(spine=self._view.spine()):
                    break
            if chain.head.commit == before and stands_apart(look, self._has):
                apart.setdefault(look.unit, now_s)
        finally:
            if chain.head.index:
                self._note(chain)
            if chain.head.commit == before:
                self._rests_until_s[look.unit] = trio.current_time() + _REST_S

    def _note(self, chain: UnitChain) -> None:
        unit = chain.tools.unit
        self._kept[unit] = _Kept(chain)
        self._view.kept(unit, chain.head.index)
        self._view.commits(unit, chain.links)
        _log.info("unit_kept", unit=unit, index=chain.head.index)

    async def serve_fetch(self, sender: PeerId, stream: Stream) -> None:
        """Somebody asks for what is kept; what is not here is answered by an empty end.

        Raises:
            RemoteProtocolError: the sender is no member, or asks for nothing that is understood.
        """
        if not await self._view.is_member(sender):
            raise RemoteProtocolError(f"{short(sender)} is not admitted to this run", "a member", "join the run first")
        request = await read_request(stream)
        kept = self._kept.get(request.unit)
        if kept is not None:
            await kept.service.serve(sender, request, stream)
