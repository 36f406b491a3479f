"""The host's copies of experts, beside a swarm in virtual time: fetched from holders, kept over a restart, given on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import Stream
from averaging.rounds.fetching.unit_mirror import COMMITS_WITHIN_S
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, fetch_commits, read_request
from averaging.state.log_entries import LOG_NAME
from averaging.state.state import state_root
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from coordinator.experts.unit_keeper import KeeperView, KeptPlace, UnitKeeper
from coordinator.progress.lineage_trust import LONGEST_REST_S, REST_PER_ASKED
from coordinator.progress.live_lineages import PATIENCE_S, STILL_S
from coordinator.progress.unit_keeper_core import UnitClaims, claims_on
from peer.holdings.host_backup import take_kept
from protocol.errors import PotluckError
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage import lineage
from tests.averaging.rounds.fetching.test_unit_mirror import begin, grow
from tests.averaging.rounds.round_world import UNIT, Party, RoundWorld, open_world
from tests.peer.session.test_catch_up import NEWCOMER, new_chain
from tests.simulation import virtual_time
from tests.simulation.keeping import KEEPER, SimulatedKeeper
from tests.simulation.layouts import EXPERTS
from tests.simulation.profiles import Profile
from tests.simulation.signing import HashSigner
from tests.simulation.swarm import World

SEED = 5
EXPERT = UnitName("expert-0")


def _index(world: World) -> int:
    return max(node.index_of(EXPERT) for node in world.nodes)


async def _newcomer(world: World) -> UnitChain:
    chain = new_chain(world, MemoryDisk(), EXPERT)
    await chain.restore()
    return chain


def _run(num_rounds: int, every_rounds: int) -> None:
    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            world, disk = World(SEED, nursery, num_peers=6, num_founders=6, profile=PROFILE), MemoryDisk()
            host = SimulatedKeeper(world, disk, every_rounds)
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: _index(world) >= num_rounds, 900.0, "the rounds")
            for node in list(world.holders(EXPERT)):
                node.crash()
            last = _index(world)
            await world.swarm.timers.sleep(60.0)
            kept = host.kept[EXPERT]
            assert last - every_rounds <= kept <= last
            await _check(world, kept)
            world.swarm.kill(KEEPER)
            again = SimulatedKeeper(world, disk, every_rounds)
            await world.wait_for(lambda: again.kept.get(EXPERT) == kept, 60.0, "the restart")
            await _check(world, kept)
            state = await again.keeper.newest(EXPERT)
            assert state is not None, "for the next checkpoint"
            assert (state.index, state_root(state, world.grid)) == (kept, world.observed_of[EXPERT].roots[state.head])
            nursery.cancel_scope.cancel()

    virtual_time.run(SEED, tell)


PROFILE = Profile("experts", layout=EXPERTS)


async def _check(world: World, kept: int) -> None:
    chain = await _newcomer(world)
    network = world.swarm.start(NEWCOMER)
    assert await take_kept(network, chain, KEEPER)
    assert chain.head.index == kept
    assert world.observed_of[EXPERT].roots[chain.head.commit] == chain.root
    assert not await take_kept(network, chain, KEEPER), "there is no more of it"
    world.swarm.end(network)


@pytest.mark.parametrize(("num_rounds", "every_rounds"), [(3, 1), (9, 3)])
def test_who_takes_up_an_expert_that_nobody_holds_has_what_its_holders_had_also_after_a_restart_of_the_host(
    num_rounds: int, every_rounds: int
) -> None:
    _run(num_rounds, every_rounds)


def test_what_is_read_for_a_checkpoint_beside_the_visits_is_whole_and_changes_none() -> None:
    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            world = World(SEED, nursery, num_peers=6, num_founders=6, profile=PROFILE)
            host = SimulatedKeeper(world, MemoryDisk())
            assert await host.keeper.newest(EXPERT) is None
            for node in world.nodes:
                world.boot(node)
            read: set[int] = set()
            with trio.fail_after(900.0):
                while len(read) < 4:
                    await trio.sleep(0.3)
                    state = await host.keeper.newest(EXPERT)
                    if state is not None:
                        assert state_root(state, world.grid) == world.observed_of[EXPERT].roots[state.head]
                        read.add(state.index)
            nursery.cancel_scope.cancel()

    virtual_time.run(SEED, tell)


def test_a_damaged_log_is_fetched_anew_and_strangers_are_given_nothing() -> None:
    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            world, disk = World(SEED, nursery, num_peers=6, num_founders=6, profile=PROFILE), MemoryDisk()
            await MemoryStorage(disk, EXPERT).append(LOG_NAME, b"?")
            host = SimulatedKeeper(world, disk)
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: host.kept.get(EXPERT, 0) >= 2, 900.0, "the rounds")
            stranger = world.swarm.start(PeerId("stranger"))
            with pytest.raises(PotluckError):
                await fetch_commits(stranger, KEEPER, EXPERT, [world.genesis(EXPERT).head])
            nursery.cancel_scope.cancel()

    virtual_time.run(SEED, tell)


VISITS_S = 70.0
"""Two visits of a unit, with what they take: what was decided is done."""


@dataclass
class HostSide:
    """The host's keeper beside holders made by hand, of which the first two stand on two sides: the second has more work.

    Attributes:
        live: who reports; what each says of itself is true unless `claims` says otherwise.
        kept: the rounds that can be given on.
        opened: opens the chain on the host's disk; None: without any milestone.
    """

    world: RoundWorld
    nursery: trio.Nursery
    live: list[Party]
    claims: dict[PeerId, tuple[int, CommitId]] = field(default_factory=dict)
    kept: dict[UnitName, int] = field(default_factory=dict)
    not_counted: frozenset[PeerId] = frozenset()
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    opened: Callable[[], Awaitable[UnitChain]] | None = None

    @property
    def light(self) -> Party:
        return self.world.parties[0]

    @property
    def heavy(self) -> Party:
        return self.world.parties[1]

    @property
    def keeper(self) -> Party:
        """The peer that has the host's disk."""
        return self.world.parties[2]

    @property
    def beside(self) -> Party:
        """The peer that has the host's second disk of the unit."""
        return self.world.parties[4]

    def start(self) -> None:
        """Another process of the host: the one before ends."""
        self.scope.cancel()
        self.scope = scope = trio.CancelScope()
        view = KeeperView(
            self._units, self._is_member, self.kept.__setitem__, self._reach, not_counted=self._note_not_counted
        )
        beside = KeptPlace(MemoryStorage(self.beside.disk), partial(_booted, self.beside))
        place = KeptPlace(MemoryStorage(self.keeper.disk), self.opened or partial(_booted, self.keeper), beside)
        self.process = process = UnitKeeper(self.world.stranger.network, {UNIT: place}, view, 1)
        self.world.stranger.network.serve_streams(FETCH_CHANNEL, self.process.serve_fetch)

        async def run() -> None:
            with scope:
                await process.run()

        self.nursery.start_soon(run)

    def _units(self) -> list[UnitClaims]:
        stands = {party.peer: (party.chain.head.index, party.chain.head.commit) for party in self.live} | self.claims
        claims, commits = (
            {peer: each[0] for peer, each in stands.items()},
            {peer: each[1] for peer, each in stands.items()},
        )
        return [claims_on(UNIT, claims, commits)]

    async def has_of(self, party: Party) -> bool:
        """Whether what can be given on is all that this party has."""
        state = await self.process.newest(UNIT)
        return state is not None and state.head == party.chain.head.commit and self.kept[UNIT] == state.index

    async def _reach(self, _peers: Sequence[PeerId]) -> None: ...

    async def _is_member(self, _peer: PeerId) -> bool:
        return True

    def _note_not_counted(self, _unit: UnitName, peers: frozenset[PeerId]) -> None:
        self.not_counted = peers


async def _booted(party: Party) -> UnitChain:
    party.boot()
    return party.chain


@asynccontextmanager
async def two_sides() -> AsyncIterator[HostSide]:
    async with open_world(5, target_tokens=300) as world, trio.open_nursery() as nursery:
        host = HostSide(world, nursery, [world.parties[1], world.parties[0]])
        await begin(host.light, host.heavy)
        await grow(world, [host.light, host.heavy], 2)
        await grow(world, [host.light], 2, 50)
        await grow(world, [host.heavy], 8, 80)
        host.start()
        await trio.sleep(10.0)
        assert await host.has_of(host.heavy)
        yield host
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("autojump_clock")
async def test_a_lineage_whose_holders_are_gone_is_given_up_after_a_minute_for_the_one_that_is_held() -> None:
    async with two_sides() as host:
        light, heavy = host.light, host.heavy
        await trio.sleep(2 * PATIENCE_S)
        assert await host.has_of(host.heavy), "a holder of it is there"
        heavy.crash()
        host.live.remove(heavy)
        await trio.sleep(PATIENCE_S - 1.0)
        assert await host.has_of(host.heavy), "it may come back"
        await trio.sleep(PATIENCE_S)
        assert await host.has_of(host.light)
        await grow(host.world, [light], 1, 60)
        await trio.sleep(PATIENCE_S)
        assert await host.has_of(light), "what comes after it is kept as ever"
        host.live.clear()
        await trio.sleep(1.0)
        assert await host.has_of(heavy), "what is preferred is given to whoever comes while nobody is there"
        host.live.append(light)
        await trio.sleep(1.0)
        assert await host.has_of(light)
        heavy.boot()
        await begin(heavy)
        host.live.append(heavy)
        await grow(host.world, [heavy], 1, 70)
        await trio.sleep(VISITS_S)
        assert await host.has_of(heavy)
        host.live.remove(light)
        await grow(host.world, [heavy], 1, 71)
        await trio.sleep(VISITS_S)
        assert not host.beside.disk.files, "the other one is not kept any longer"


async def _never(_peer: PeerId, _stream: Stream) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("ahead", [0, 1, 1 << 50])
@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.usefixtures("autojump_clock")
async def test_who_says_that_it_stands_on_the_kept_side_holds_the_host_up_for_minutes_and_is_named(
    ahead: int, answers: bool
) -> None:
    async with two_sides() as host:
        liar = host.world.parties[3]
        await begin(liar)
        if not answers:
            liar.network.serve_streams(FETCH_CHANNEL, _never)
        head = host.heavy.chain.head
        host.heavy.crash()
        host.live.remove(host.heavy)
        host.claims[liar.peer] = head.index + ahead, head.commit
        with capture_logs() as logs:
            for seed in (60, 61, 62):  # too few to outweigh the kept side
                await grow(host.world, [host.light], 1, seed)
                await trio.sleep((STILL_S + PATIENCE_S + VISITS_S) / 3)
            assert await host.has_of(host.light)
        assert peer_name(liar.peer) in " ".join(log["reason"] for log in logs if log["event"] == "holder_not_counted")


@pytest.mark.usefixtures("autojump_clock")
async def test_one_that_claims_what_it_never_shows_hides_neither_that_the_others_are_elsewhere_nor_what_they_have() -> (
    None
):
    async with two_sides() as host:
        liar = host.world.parties[3]
        liar.serve_frames([b"\x01certificate"])
        host.heavy.crash()
        host.live.remove(host.heavy)
        host.claims[liar.peer] = 1 << 50, CommitId(b"?" * 32)
        await trio.sleep(PATIENCE_S + VISITS_S)
        assert await host.has_of(host.light)
        assert liar.peer in host.not_counted
        await grow(host.world, [host.light], 1, 60)
        await trio.sleep(VISITS_S)
        assert await host.has_of(host.light), "what comes after it is kept as ever"
        assert len(liar.asked) < 10, "it is left alone for longer each time"
        host.heavy.boot()
        await begin(host.heavy, liar)
        await grow(host.world, [host.heavy], 1, 70)
        host.live[:] = [host.heavy]
        host.claims[liar.peer] = 2, host.heavy.chain.links[2].commit
        await trio.sleep(LONGEST_REST_S)
        assert not host.not_counted, "who tells of nothing untrue counts again"


@pytest.mark.usefixtures("autojump_clock")
async def test_who_claims_another_side_that_nobody_shows_never_makes_the_host_leave_what_it_keeps() -> None:
    async with two_sides() as host:
        liar = host.world.parties[3]
        await begin(liar)
        for party in (host.heavy, host.light):
            party.crash()
        host.live.clear()
        host.claims[liar.peer] = 5, CommitId(b"?" * 32)
        await trio.sleep(10 * PATIENCE_S)
        assert await host.has_of(host.heavy)
        host.heavy.boot()
        await begin(host.heavy)
        host.live.append(host.heavy)
        await grow(host.world, [host.heavy], 1, 60)
        await trio.sleep(VISITS_S)
        assert await host.has_of(host.heavy)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_lineage_made_up_while_all_are_away_costs_them_nothing_of_what_the_host_keeps() -> None:
    async with two_sides() as host:
        liar = host.world.parties[3]
        await begin(liar)
        for party in (host.heavy, host.light):
            party.crash()
        await grow(host.world, [liar], 3, 90)  # alone, on the run's start
        host.live[:] = [liar]
        await trio.sleep(PATIENCE_S + VISITS_S)
        assert await host.has_of(liar), "it may be the only one who is left"
        host.live.clear()
        await trio.sleep(1.0)
        assert await host.has_of(host.heavy)
        newcomer = Party(host.world, HashSigner(b"newcomer"))
        await newcomer.chain.restore()
        assert await take_kept(newcomer.network, newcomer.chain, host.world.stranger.peer)
        assert newcomer.chain.head == host.heavy.chain.head


@pytest.mark.usefixtures("autojump_clock")
async def test_a_host_that_restarts_every_three_minutes_still_finds_that_nobody_goes_on_at_the_kept_side() -> None:
    async with two_sides() as host:
        liar = host.world.parties[3]
        await begin(liar)
        host.claims[liar.peer] = host.heavy.chain.head.index, host.heavy.chain.head.commit
        host.heavy.crash()
        host.live.remove(host.heavy)
        for seed in (60, 61, 62):  # too few to outweigh the kept side
            host.start()
            await grow(host.world, [host.light], 1, seed)
            await trio.sleep(180.0)
        assert await host.has_of(host.light)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_holder_that_stalls_every_time_holds_all_units_up_for_a_quarter_of_the_time_at_most() -> None:
    other = UnitName("fragment-1")
    async with open_world(units=(UNIT, other)) as world, trio.open_nursery() as nursery:
        liar, keeper = world.parties[0], world.parties[2]
        busy_s, begun_s = 0.0, trio.current_time()

        async def trickle(_peer: PeerId, stream: Stream) -> None:
            nonlocal busy_s
            await read_request(stream)
            since_s = trio.current_time()
            try:
                for _ in range(10_000):  # just fast enough to be waited for
                    await stream.send_frame(b"?" * 10_000)
                    await trio.sleep(1.0)
            finally:
                busy_s += trio.current_time() - since_s

        liar.network.serve_streams(FETCH_CHANNEL, trickle)

        def units() -> list[UnitClaims]:
            return [claims_on(UNIT, {liar.peer: 1 << 50}, {liar.peer: CommitId(b"?" * 32)}), claims_on(other, {}, {})]

        async def reach(_peers: Sequence[PeerId]) -> None: ...

        async def is_member(_peer: PeerId) -> bool:
            return True

        place = KeptPlace(MemoryStorage(keeper.disk), partial(_booted, keeper))
        view = KeeperView(units, is_member, dict[UnitName, int]().__setitem__, reach)
        nursery.start_soon(UnitKeeper(world.stranger.network, {UNIT: place, other: place}, view, 1).run)
        await trio.sleep(3 * 3600.0)
        elapsed_s = trio.current_time() - begun_s
        once_s = REST_PER_ASKED * COMMITS_WITHIN_S
        assert 1000.0 < busy_s < (elapsed_s + once_s) / (1.0 + REST_PER_ASKED) + 60.0
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("autojump_clock")
async def test_a_host_whose_copy_is_gone_keeps_a_unit_again_whose_holders_begin_at_a_milestone_and_doubts_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lineage, "MAX_DEPTH", 4)
    async with open_world(5) as world, trio.open_nursery() as nursery:
        holder, keeper = world.parties[0], world.parties[2]
        await begin(holder)
        made = await world.grow([holder], 6)
        milestone = world.milestone_at(made[5])
        holder.milestones.take([milestone], "the host")
        await world.grow([holder], 6)
        assert holder.chain.line.root.index == 6

        async def opened() -> UnitChain:
            keeper.boot()
            keeper.milestones.take([milestone], "the ledger")
            return keeper.chain

        host = HostSide(world, nursery, [holder], opened=opened)
        with capture_logs() as logs:
            host.start()
            await trio.sleep(10.0)
            assert await host.has_of(holder)
            await world.grow([holder], 1)
            await trio.sleep(10.0)
            assert await host.has_of(holder)
        assert "holder_not_counted" not in [line["event"] for line in logs]
        assert not host.not_counted
        nursery.cancel_scope.cancel()
