"""Two units at one peer: the spine and one beside it, each with a fork whose other side is ready to be switched to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.head_vector import HeadVector, Mover, unit_move
from averaging.rounds.lineage.earlier_states import state_at
from averaging.rounds.lineage.head_state import AppliedCommit
from averaging.rounds.lineage.round_context import RoundContext
from averaging.rounds.lineage.round_reports import RoundReport
from averaging.rounds.lineage.unit_chain import PreparedSwitch, UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.peer_rounds import PeerContext, PeerRounds
from averaging.rounds.spine_follower import SpineFollower
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.rounds.unit_service import RoundService
from averaging.state.generations import Generations
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryStorage
from protocol.ids import PeerId, Root, UnitName
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.messages.messages import Heartbeat, Promise, RoundMessage, UnitHead
from protocol.rounds.messages.record import NO_SPINE, Ballot
from protocol.rounds.messages.requests import FetchRequest
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    RUN_ID,
    UNIT,
    VERIFIER,
    MadeCommit,
    Party,
    RoundWorld,
    apply_whole,
    open_world,
    tree_nodes,
)
from tests.averaging.rounds.service_world import NEVER_DUE, HandTrainer, config_of, listen, of_kind, tell, until
from tests.virtual import InlineOffload, VirtualClock

SIDE = UnitName("fragment-1")
"""The unit beside the spine, which is UNIT."""

BOTH = (UNIT, SIDE)


def storage_of(party: Party, unit: UnitName) -> MemoryStorage:
    """The spine's lies in the peer's own folder, as that of a single unit."""
    return MemoryStorage(party.disk, "" if unit == UNIT else unit)


def chain_of(party: Party, unit: UnitName) -> UnitChain:
    """A unit's chain in a new process on the party's disk; not restored yet."""
    storage, offload = storage_of(party, unit), InlineOffload()
    log, generations = UnitLog(storage), Generations(storage, GRID, offload)
    tools = UnitContext(RUN_ID, unit, VERIFIER, CODEC, GRID, offload, log, generations)
    return UnitChain(tools, party.world.start_record, party.world.genesis_of(unit))


def start_of(world: RoundWorld, unit: UnitName) -> ChainLink:
    """The link before a unit's first commit."""
    return genesis_link(world.start_record, unit)


async def apply_to(chain: UnitChain, *commits: MadeCommit) -> AppliedCommit:
    """As the service does it: bytes on disk, then the commit."""
    for commit in commits:
        await commit.write_to(chain.tools.log)
        applied = await apply_whole(chain, commit.link, commit.certificate)
    return applied


def serve_units(party: Party, chains: Mapping[UnitName, UnitChain]) -> None:
    """Answer on the channel "fetch" for these units and note who asked for what."""

    async def serve(peer: PeerId, stream: Stream) -> None:
        request: FetchRequest = await read_request(stream)
        party.asked.append((peer, request))
        chain = chains.get(request.unit)
        if chain is not None:
            tools = chain.tools
            service = TransferService(
                tools.unit, tools.log, tools.generations, GRID, lambda known: chain.line.after(known)
            )
            await service.serve(peer, request, stream)

    party.network.serve_streams(FETCH_CHANNEL, serve)


@dataclass(frozen=True)
class Sides:
    """One unit's fork: a commit that all have, our own lone one on it, and what the others did meanwhile."""

    agreed: MadeCommit
    ours: MadeCommit
    theirs: Sequence[MadeCommit]


def make_sides(world: RoundWorld, unit: UnitName, spine: Sides | None = None) -> Sides:
    """The fork of a unit; beside the spine every commit cites the spine's on its own side."""
    cited = [NO_SPINE] * 3
    if spine is not None:
        cited = [side.link.commit for side in (spine.agreed, spine.ours, spine.theirs[-1])]
    agreed = world.commit_on(start_of(world, unit), 1, spine=cited[0])
    ours = world.commit_on(agreed.link, 2, members=[0], is_lone=True, spine=cited[1])
    theirs = [world.commit_on(agreed.link, 3, members=[1, 2], spine=cited[2])]
    theirs.append(world.commit_on(theirs[0].link, 4, members=[1, 2], spine=cited[2]))
    return Sides(agreed, ours, theirs)


@dataclass
class Forked:
    """The first party stands on its own side of both units' forks, and has all bytes of the others' side on disk."""

    world: RoundWorld
    sides: Mapping[UnitName, Sides]
    chains: dict[UnitName, UnitChain]
    prepared: dict[UnitName, PreparedSwitch] = field(default_factory=dict)

    @property
    def party(self) -> Party:
        return self.world.parties[0]

    @property
    def vector(self) -> HeadVector:
        """As it is made anew in each process."""
        return HeadVector(MemoryStorage(self.party.disk))

    def mover(self, unit: UnitName) -> Mover:
        """As the rounds of a peer make it."""
        chain, prepared = self.chains[unit], self.prepared[unit]

        async def flip(chain: UnitChain, prepared: PreparedSwitch) -> bool:
            return (await chain.flip(prepared))[1]

        move = unit_move(unit, prepared.fork, prepared.path)
        return Mover(move, chain.tools.log, chain.moving, chain.line.has, partial(flip, chain, prepared))

    @property
    def movers(self) -> list[Mover]:
        return [self.mover(unit) for unit in BOTH]

    def heads(self) -> list[str]:
        """On which side each unit stands: "ours", "theirs", or the number of its head elsewhere."""
        return [self._side_of(chain) for _, chain in sorted(self.chains.items())]

    def _side_of(self, chain: UnitChain) -> str:
        sides = self.sides[chain.tools.unit]
        named = {sides.ours.link.commit: "ours", sides.theirs[-1].link.commit: "theirs"}
        return named.get(chain.state.head, str(chain.head.index))

    async def restart(self) -> None:
        """Another process on the disk: the vector first, then the units."""
        self.party.disk.power_on()
        self.chains = {unit: chain_of(self.party, unit) for unit in BOTH}
        await self.vector.finish({unit: chain.tools.log for unit, chain in self.chains.items()})
        for chain in self.chains.values():
            await chain.restore()


@asynccontextmanager
async def forked_units(target_tokens: int = 3000) -> AsyncIterator[Forked]:
    """Two units of one peer, both on their own side."""
    async with open_world(target_tokens=target_tokens, units=BOTH) as world:
        spine = make_sides(world, UNIT)
        sides = {UNIT: spine, SIDE: make_sides(world, SIDE, spine)}
        forked = Forked(world, sides, {unit: chain_of(world.parties[0], unit) for unit in BOTH})
        for unit, chain in forked.chains.items():
            await apply_to(chain, sides[unit].agreed, sides[unit].ours)
            forked.prepared[unit] = await prepared_for(chain, sides[unit])
        yield forked


async def prepared_for(chain: UnitChain, sides: Sides) -> PreparedSwitch:
    """The switch to the others' side, whose bytes are put on disk."""
    for commit in sides.theirs:
        await commit.write_to(chain.tools.log)
    fork = sides.agreed.link.commit
    fork_state = await state_at(chain, fork)
    assert fork_state is not None
    path = tree_nodes(sides.theirs)
    return await chain.prepared(fork, path, fork_state, await chain.replay(fork_state, path, is_own=False))


# --- whole peers --------------------------------------------------------------------------------------------------------------


@dataclass
class UnitsLife:
    """The first party with the rounds of its units running, beside two whose words the test speaks."""

    world: RoundWorld
    rounds: PeerRounds
    chains: dict[UnitName, UnitChain]
    services: dict[UnitName, RoundService]
    trainers: dict[UnitName, HandTrainer]
    follower: SpineFollower | None
    heard: list[RoundMessage]
    reported: list[RoundReport]

    @property
    def party(self) -> Party:
        return self.world.parties[0]

    async def assert_answers(self, unit: UnitName, attempt: int = 9) -> None:
        """The unit's machine still takes part: asked for a promise, it promises."""
        ballot = Ballot(attempt, self.world.parties[1].peer)
        request = self.world.promise_request(ballot, self.chains[unit].head.commit, unit)
        await tell(self.world.parties[1], self.party, request)
        expected = (unit, ballot)
        await until(lambda: any((m.unit, m.ballot) == expected for m in of_kind(Promise, self.heard)), within_s=5.0)


def heads_at(party: Party, *links: ChainLink) -> Heartbeat:
    """A sign of life from a peer that stands on these commits, one of each unit."""
    heads = (
        UnitHead(link.unit, link.commit, link.index, link.total_tokens, 0, False, link.commit, Root(bytes(32)))
        for link in links
    )
    return Heartbeat(party.member, True, 0, tuple(heads))


@asynccontextmanager
async def units_life(
    world: RoundWorld,
    *,
    held: Sequence[UnitName] = BOTH,
    heartbeat_s: float = 1.0,
    vector: HeadVector | None = None,
    is_running: bool = True,
    is_banned: Callable[[PeerId], bool] = lambda _: False,
) -> AsyncIterator[UnitsLife]:
    """A process on the first party's disk, until the block ends; the second party notes what it hears."""
    party, members = world.parties[0], {party.peer for party in world.parties}
    reported: list[RoundReport] = []

    async def is_member(peer: PeerId) -> bool:
        return peer in members

    clock, chains = VirtualClock(), {unit: chain_of(party, unit) for unit in held}
    follower = None
    if UNIT not in held:
        log = UnitLog(storage_of(party, UNIT))
        follower = SpineFollower(UNIT, world.start_record, log, party.network, VERIFIER, RUN_ID)
        await follower.restore()
    tools = PeerContext(party.network, clock, party.seal, is_member, reported.append, is_banned)
    rounds = PeerRounds(RUN_ID, VERIFIER, tools, vector or HeadVector(MemoryStorage(party.disk)), follower)
    services: dict[UnitName, RoundService] = {}
    trainers = {unit: HandTrainer() for unit in held}
    for unit, chain in chains.items():
        open_round = await chain.restore()
        config = replace(config_of(world, party), unit=unit, spine=UNIT, heartbeat_s=heartbeat_s)
        unit_tools = RoundContext(
            party.network,
            clock,
            InlineOffload(),
            trainers[unit],
            party.seal,
            reported.append,
            credential=party.credential,
        )
        services[unit] = RoundService(config, chain, open_round, unit_tools, rounds)
        rounds.add(services[unit])
    rounds.serve()
    heard = listen(world.parties[1])
    listen(world.parties[2])
    async with trio.open_nursery() as nursery:
        if is_running:
            await nursery.start(rounds.run)
        await rounds.list_peers(tuple(sorted(members)))
        if is_running:
            for service in services.values():
                await service.drained()
        yield UnitsLife(world, rounds, chains, services, trainers, follower, heard, reported)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def two_units(
    *,
    heartbeat_s: float = 1.0,
    held: Sequence[UnitName] = BOTH,
    is_running: bool = True,
    is_banned: Callable[[PeerId], bool] = lambda _: False,
) -> AsyncIterator[UnitsLife]:
    """A world of its own around such a process, in which nothing happens but what the test does."""
    async with (
        open_world(target_tokens=NEVER_DUE, units=BOTH) as world,
        units_life(world, held=held, heartbeat_s=heartbeat_s, is_running=is_running, is_banned=is_banned) as life,
    ):
        yield life
