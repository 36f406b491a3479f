from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.gather_results import GATHER_WITHIN_S, Gatherer
from averaging.rounds.lineage import updates
from averaging.rounds.lineage.earlier_states import recomputed, state_at
from averaging.rounds.lineage.head_state import AppliedCommit
from averaging.rounds.lineage.round_reports import (
    DownloadEnded,
    Downloading,
    LineageSwitched,
    RoundCommitted,
    TaskFailed,
)
from averaging.rounds.lineage_driver import KEEP_AFTER_S, MAX_PAUSE_S, STALL_PAUSE_S, LineageDriver
from averaging.rounds.traffic.transfer import fetch_chunks
from averaging.storage.memory_storage import UNBOUNDED_BYTES
from protocol.errors import RemoteProtocolError, UnreachableError
from protocol.ids import PeerId, Root
from protocol.rounds.events import Applied, CommitsFetched, CommitStalled, Switched, SwitchFailed, SwitchPrepared
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import tree_of
from protocol.rounds.messages.messages import Committed
from protocol.rounds.messages.record import Ballot, CommitRecord
from protocol.rounds.messages.requests import FetchCommits, FetchResult, FetchState
from protocol.rounds.messages.wire import encode_certificate
from protocol.rounds.orders import CatchUp, Commit, PrepareSwitch, Switch
from protocol.rounds.state import OpenRound, Switching
from tests.averaging.rounds.exchange_world import theta
from tests.averaging.rounds.round_world import SPACING, TOKENS, MadeCommit, Party, RoundWorld, open_world, tree_nodes
from tests.averaging.rounds.service_world import (
    Bench,
    HandTrainer,
    OneUnit,
    bench_in,
    heartbeat_at,
    heartbeat_of,
    one_service,
    tell,
    until,
)
from tests.protocol.rounds.made_commits import made_spine

Clock = trio.testing.MockClock


@dataclass
class Scene:
    """The pursuer of the first party; the other two hold what they have applied and serve it."""

    world: RoundWorld
    bench: Bench
    pursuer: LineageDriver
    nursery: trio.Nursery

    @property
    def party(self) -> Party:
        return self.bench.party

    @property
    def others(self) -> list[Party]:
        return self.world.parties[1:]

    async def commit(self, commit: MadeCommit, *holders: Party) -> None:
        order = Commit(commit.link, commit.certificate, tuple(party.peer for party in holders))
        await self.pursuer.commit(order, None)

    def ask(self, source: Party) -> None:
        order = CatchUp(source.peer, (self.party.chain.head.commit, self.world.genesis.head))
        self.bench.tasks.spawn(self.pursuer.catch_up, order)

    def prepare(self, fork: MadeCommit, path: Sequence[MadeCommit]) -> None:
        """As the machine orders it when another lineage is to be followed."""
        state = self.bench.state
        self.bench.state = replace(state, switching=Switching(fork.link.commit, path[-1].link.commit))
        order = PrepareSwitch(fork.link.commit, tree_nodes(path), ())
        self.nursery.start_soon(self.pursuer.prepare_switch, order)

    async def switch(self, fork: MadeCommit, path: Sequence[MadeCommit]) -> None:
        await self.pursuer.switch(Switch(fork.link.commit, tree_nodes(path)))


@asynccontextmanager
async def _scene(trainer: HandTrainer | None = None) -> AsyncIterator[Scene]:
    async with open_world() as world, bench_in(world, trainer=trainer) as (bench, nursery):
        party = bench.party
        gatherer = Gatherer(party.network, party.chain)
        pursuer = LineageDriver(
            party.chain, bench.tools, gatherer, bench.adopter, bench.tell, OneUnit(party), lambda: bench.state
        )
        for other in world.parties[1:]:
            other.serve_fetches()
        yield Scene(world, bench, pursuer, nursery)


# --- the next commit ----------------------------------------------------------------------------------------------------------


async def test_a_commit_is_applied_with_bytes_from_its_holders_and_told_to_trainer_and_machine(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        commit = scene.world.commits(1)[0]
        await scene.others[1].apply(commit)
        scene.bench.trainer.hold("shift")
        await scene.commit(commit, scene.others[1])
        root = scene.others[1].chain.root
        assert scene.bench.events == [Applied(commit.link, commit.certificate, root, OpenRound())]
        assert scene.party.chain.head == commit.link
        assert not scene.bench.adopter.is_idle, "a delta that is asked for from here on waits for the adoption"
        assert [type(report) for report in scene.bench.published] == [RoundCommitted]


async def test_the_state_after_a_commit_is_written_a_moment_after_its_trainer_heard_of_it(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        first, second = scene.world.commits(2)
        for commit in (first, second):
            await commit.write_results(scene.party)
        generations = scene.party.chain.tools.generations
        scene.nursery.start_soon(scene.commit, first)
        await scene.bench.until_reported(Applied)
        await trio.sleep(0.9 * KEEP_AFTER_S)
        assert first.link.commit not in {ref.commit for ref in await generations.list()}
        await trio.sleep(0.2 * KEEP_AFTER_S)
        assert first.link.commit in {ref.commit for ref in await generations.list()}
        began_s = trio.current_time()
        await scene.commit(second)
        assert second.link.commit in {ref.commit for ref in await generations.list()}
        assert trio.current_time() - began_s < 0.5 * KEEP_AFTER_S, (
            "where rounds follow each other at once it waits less"
        )


async def test_what_was_offered_before_a_step_that_failed_half_way_is_dropped_with_its_overwritten_snapshot(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _scene() as scene:
        chain, taken = scene.party.chain, list[object]()
        chain.held.steps_in_place = True
        first = scene.world.commits(1)[0]
        await first.write_results(scene.party)
        await scene.commit(first)
        for seed in (1, 2):
            last = scene.world.commit_on(chain.head, seed, attested_root=chain.root)
            await last.write_results(scene.party)
            if seed == 1:
                await scene.commit(last)
        await scene.bench.adopter.wait_adopted()

        async def take(link: ChainLink, record: CommitRecord, applied: AppliedCommit, offered: object) -> AppliedCommit:
            taken.append(offered)
            return applied

        def fails(*_: object) -> None:
            raise RemoteProtocolError("a bit that flipped", "none")

        monkeypatch.setattr(scene.bench.adopter, "commit", take)
        theta_N = torch.zeros(chain.tools.grid.num_elements)
        offered = SimpleNamespace(root=Root(bytes(32)), theta_N=theta_N, may_overwrite_theta=True)
        order = Commit(last.link, last.certificate, ())
        with monkeypatch.context() as failing:
            failing.setattr(updates, "step_in_place", fails)
            await scene.pursuer.commit(order, offered)  # type: ignore[arg-type]
        assert chain.held.torn_at == last.record.parent
        rebuilt = await recomputed(chain)
        assert rebuilt is not None
        await chain.replace_state(rebuilt)
        await scene.pursuer.commit(order, offered)  # type: ignore[arg-type]
        assert chain.head == last.link
        assert taken == [None]


async def test_of_commits_that_come_at_once_the_last_one_is_written(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        first, second = scene.world.commits(2)
        for commit in (first, second):
            await commit.write_results(scene.party)
        scene.nursery.start_soon(scene.commit, first)
        await scene.bench.until_reported(Applied)
        await scene.commit(second)
        await trio.sleep(2 * KEEP_AFTER_S)
        written = {ref.commit for ref in await scene.party.chain.tools.generations.list()}
        assert second.link.commit in written
        assert first.link.commit not in written


async def test_a_commit_whose_bytes_are_with_nobody_stalls_and_is_applied_when_they_turn_up(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        commit = scene.world.commits(1)[0]
        await scene.commit(commit)
        assert scene.bench.events == [CommitStalled(commit.link.commit, "no live peer has its bytes", True)]
        assert trio.current_time() >= GATHER_WITHIN_S
        await commit.write_results(scene.others[0])
        await scene.commit(commit)
        root = scene.party.chain.root
        assert scene.bench.events[-1] == Applied(commit.link, commit.certificate, root, OpenRound())


@pytest.mark.parametrize("has_bytes", [True, False])
async def test_a_commit_that_cannot_be_written_stalls_and_is_applied_later(
    has_bytes: bool, autojump_clock: Clock
) -> None:
    async with _scene() as scene:
        commit = scene.world.commits(1)[0]
        await commit.write_results(scene.party if has_bytes else scene.others[0])
        root = scene.party.chain.root
        scene.party.disk.fail_with_disk_full_after(10)
        await scene.commit(commit)
        stalled = await scene.bench.until_reported(CommitStalled)
        assert (stalled.commit, "no space" in stalled.why, stalled.is_missing) == (commit.link.commit, True, False)
        assert trio.current_time() >= STALL_PAUSE_S, "it is not tried again at once"
        assert (scene.party.chain.head.index, scene.party.chain.root, scene.bench.adopter.is_idle) == (0, root, True)
        scene.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await scene.commit(commit)
        await scene.bench.until_reported(Applied)
        assert len((await scene.party.log.load()).certificates) == 1


async def test_a_commit_that_no_longer_follows_the_head_stalls(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        first, other = scene.world.commits(1)[0], scene.world.commit_on(scene.world.start, 77)
        await scene.party.apply(first)
        await other.write_results(scene.party)
        await scene.commit(other)
        assert [type(event) for event in scene.bench.events] == [CommitStalled]
        assert scene.party.chain.head == first.link


# --- commits that we missed ---------------------------------------------------------------------------------------------------


async def _ask_again_and_again(scene: Scene, source: Party, during_s: float) -> None:
    end_s = trio.current_time() + during_s
    while trio.current_time() < end_s:
        scene.ask(source)
        await trio.sleep(0.25)


@pytest.mark.parametrize("answer", ["nothing", "what is known", "garbage"])
async def test_a_useless_source_is_asked_less_and_less_often(answer: str, autojump_clock: Clock) -> None:
    async with _scene() as scene:
        commit = scene.world.commits(1)[0]
        scene.bench.state = replace(
            scene.bench.state, tree=tree_of(scene.world.start).add(commit.link, commit.certificate)
        )
        frames = {"nothing": [], "what is known": [encode_certificate(commit.certificate)], "garbage": [b"\xff"]}[
            answer
        ]
        scene.others[0].serve_frames(frames)
        await _ask_again_and_again(scene, scene.others[0], 100.0)
        gaps_s = [later - earlier for earlier, later in pairwise(scene.others[0].asked_at_s)]
        assert [round(gap_s) for gap_s in gaps_s] == [1, 2, 4, 8, 16, round(MAX_PAUSE_S), round(MAX_PAUSE_S)]


async def test_a_source_that_cannot_be_reached_is_asked_less_and_less_often_and_others_are_not(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        scene.world.swarm.kill(scene.others[0].peer)
        await _ask_again_and_again(scene, scene.others[0], 60.0)
        failed = [report for report in scene.bench.published if isinstance(report, TaskFailed)]
        assert len(failed) == 6
        scene.ask(scene.others[1])
        await trio.sleep(0.5)
        assert len(scene.others[1].asked) == 1


async def test_a_source_that_had_something_is_asked_again_at_once(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made, source = scene.world.commits(2), scene.others[0]
        for round_ in range(2):
            await source.apply(made[round_])
            scene.ask(source)
            await trio.sleep(0.5)
            assert scene.bench.events.pop() == CommitsFetched(
                source.peer, tuple(commit.certificate for commit in made[: round_ + 1])
            )
        assert len(source.asked) == 2


async def test_a_source_is_asked_one_question_at_a_time(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        world, source = scene.world, scene.others[0]
        await source.apply(world.commits(1)[0])
        world.swarm.freeze(source.peer)
        for _ in range(3):
            scene.ask(source)
            await trio.sleep(1.0)
        world.swarm.thaw(source.peer)
        await scene.bench.until_reported(CommitsFetched)
        await trio.sleep(5.0)
        assert (len(source.asked), scene.bench.events) == (1, [])


async def test_a_long_chain_comes_to_the_machine_in_pieces(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("averaging.rounds.lineage_driver.CERTIFICATES_AT_ONCE", 2)
    async with _scene() as scene:
        made, source = scene.world.commits(5), scene.others[0]
        for commit in made:
            await source.apply(commit)
        scene.ask(source)
        await trio.sleep(1.0)
        pieces = [event.certificates for event in scene.bench.events if isinstance(event, CommitsFetched)]
        assert [len(piece) for piece in pieces] == [2, 2, 1]
        assert [certificate for piece in pieces for certificate in piece] == [c.certificate for c in made]


async def test_who_is_asked_already_when_the_spine_is_about_to_move_is_waited_for_and_not_asked_twice(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        commit, source = scene.world.commits(1)[0], scene.others[0]
        await source.apply(commit)
        scene.ask(source)
        await trio.sleep(0.001)
        assert source.asked == [], "the question is on its way"
        await scene.pursuer.ask_with_spine((source.peer,))
        assert scene.bench.events == [CommitsFetched(source.peer, (commit.certificate,))]
        assert len(source.asked) == 1


async def test_a_few_holders_are_asked_when_the_spine_is_about_to_move_and_one_that_is_gone_is_passed_over(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        commit, (gone, source) = scene.world.commits(1)[0], scene.others
        await source.apply(commit)
        scene.world.swarm.kill(gone.peer)
        await scene.pursuer.ask_with_spine((gone.peer, source.peer))
        assert scene.bench.events == [CommitsFetched(source.peer, (commit.certificate,))]


# --- another lineage ----------------------------------------------------------------------------------------------------------


@dataclass
class Fork:
    """One agreed commit; our own lone one after it, and what the others did meanwhile."""

    scene: Scene
    agreed: MadeCommit
    ours: MadeCommit
    theirs: list[MadeCommit]

    async def assert_switched(self) -> None:
        scene, donor = self.scene, self.scene.others[0]
        await scene.switch(self.agreed, self.theirs)
        switched = await scene.bench.until_reported(Switched)
        assert (switched.link, switched.state_root) == (self.theirs[-1].link, donor.chain.root)
        await scene.party.restart()
        assert (scene.party.chain.head, scene.party.chain.root) == (self.theirs[-1].link, donor.chain.root)
        assert scene.party.chain.line.certificates == donor.chain.line.certificates


@asynccontextmanager
async def _fork(num_theirs: int, *, is_attested: bool = True) -> AsyncIterator[Fork]:
    """The others have applied their lineage, and each of its records attests the state before. Up to three commits are replayed."""
    async with _scene(HandTrainer(theta(1))) as scene:
        world = scene.world
        agreed = world.commits(1)[0]
        for party in world.parties:
            await party.apply(agreed)
        ours = world.commit_on(agreed.link, 5, members=[0], is_lone=True)
        await scene.party.apply(ours)
        theirs: list[MadeCommit] = []
        for seed in range(num_theirs):
            parent = theirs[-1].link if theirs else agreed.link
            root = scene.others[0].chain.root if is_attested else None
            theirs.append(world.commit_on(parent, 50 + seed, members=[1, 2], attested_root=root))
            for party in scene.others:
                await party.apply(theirs[-1])
        scene.bench.state = replace(scene.bench.state, config=replace(scene.bench.config, replay_at_most=3))
        yield Fork(scene, agreed, ours, theirs)


def _asked(scene: Scene, kind: type) -> list[object]:
    return [request for party in scene.others for _, request in party.asked if isinstance(request, kind)]


def _parts(scene: Scene) -> list[FetchState]:
    """The parts of states that were asked for."""
    return [part for part in _asked(scene, FetchState) if isinstance(part, FetchState) and part.stop_chunk > 0]


async def test_a_switch_by_replay_brings_the_bytes_first_and_flips_afterwards(autojump_clock: Clock) -> None:
    async with _fork(3) as fork:
        scene = fork.scene
        scene.prepare(fork.agreed, fork.theirs)
        assert await scene.bench.until_reported(SwitchPrepared) == SwitchPrepared(fork.theirs[-1].link.commit)
        assert scene.party.chain.head == fork.ours.link, "work goes on where we are meanwhile"
        assert _asked(scene, FetchState) == []
        assert len(_asked(scene, FetchResult)) == 6
        await fork.assert_switched()


async def test_a_switch_over_many_commits_takes_a_whole_attested_state_and_replays_the_rest(
    autojump_clock: Clock,
) -> None:
    async with _fork(4) as fork:
        scene = fork.scene
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        bases = [request.base for request in _asked(scene, FetchResult) if isinstance(request, FetchResult)]
        assert set(bases) == {fork.theirs[2].link.commit}, "the newest state that a later commit attests"
        await fork.assert_switched()


async def test_a_donor_whose_state_is_spoilt_is_passed_over(autojump_clock: Clock) -> None:
    async with _fork(4) as fork:
        scene = fork.scene
        for name in scene.others[0].generation_names():
            scene.others[0].spoil(name)
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        await fork.assert_switched()


async def test_a_state_that_no_commit_attests_is_not_taken_and_results_lead_there_instead(
    autojump_clock: Clock,
) -> None:
    async with _fork(4, is_attested=False) as fork:
        fork.scene.prepare(fork.agreed, fork.theirs)
        await fork.scene.bench.until_reported(SwitchPrepared)
        assert _parts(fork.scene) == []
        await fork.assert_switched()


async def _behind_by(scene: Scene, num_commits: int) -> list[MadeCommit]:
    """Orders what who is behind by more commits than are replayed must fetch. No record attests a state of them."""
    made = scene.world.commits(num_commits)
    for commit in made:
        await scene.others[0].apply(commit)
    scene.bench.state = replace(scene.bench.state, config=replace(scene.bench.config, replay_at_most=3))
    target = made[-1].link.commit
    scene.bench.state = replace(scene.bench.state, switching=Switching(scene.world.start.commit, target))
    order = PrepareSwitch(scene.world.start.commit, tree_nodes(made), ())
    scene.nursery.start_soon(scene.pursuer.prepare_switch, order)
    return made


async def test_who_is_only_behind_waits_for_a_state_that_is_attested(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made = await _behind_by(scene, 4)
        failed = await scene.bench.until_reported(SwitchFailed)
        assert (failed.missing, _asked(scene, FetchResult)) == (made[0].link.commit, [])


async def test_who_is_behind_by_no_more_than_large_states_are_apart_takes_results_where_no_state_is(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        scene.party.chain.tools = replace(scene.party.chain.tools, small_state_bytes=0)
        await _behind_by(scene, SPACING)
        await scene.bench.until_reported(SwitchPrepared)
        assert len(_asked(scene, FetchResult)) == 2 * SPACING


async def _gives_nothing(*_: object) -> list[bytes]:
    raise UnreachableError("the donor went away", "one that stays")


async def test_a_download_that_fails_is_told_to_have_ended(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("averaging.rounds.fetching.download.fetch_chunks", _gives_nothing)
    async with _fork(4) as fork:
        scene = fork.scene
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)  # by its results
        reported = [report for report in scene.bench.published if isinstance(report, Downloading | DownloadEnded)]
        assert isinstance(reported[0], Downloading)
        assert isinstance(reported[-1], DownloadEnded)


def _held_up(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Chunks of states come once this is set."""
    gate = trio.Event()

    async def fetch(network: Network, peer: PeerId, request: FetchState, hashes: Sequence[bytes]) -> list[bytes]:
        await gate.wait()
        return await fetch_chunks(network, peer, request, hashes)

    monkeypatch.setattr("averaging.rounds.fetching.download.fetch_chunks", fetch)
    return gate


def _downloads(scene: Scene) -> int:
    return sum(isinstance(report, Downloading) for report in scene.bench.published)


async def test_a_lineage_that_is_wanted_again_while_it_still_comes_is_not_fetched_twice(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = _held_up(monkeypatch)
    async with _fork(4) as fork:
        scene = fork.scene
        scene.prepare(fork.agreed, fork.theirs)
        await until(lambda: _downloads(scene) == 1, 5.0)
        scene.bench.state = replace(scene.bench.state, switching=None)
        await trio.sleep(100.0)
        scene.prepare(fork.agreed, fork.theirs)
        await trio.sleep(1.0)
        assert _downloads(scene) == 1
        gate.set()
        await scene.bench.until_reported(SwitchPrepared)
        await fork.assert_switched()
        await trio.sleep(100.0)
        assert scene.bench.events == []
        assert len(_parts(scene)) == len(set(_parts(scene)))


@pytest.mark.parametrize("is_own_first", [True, False])
async def test_a_lineage_that_the_unit_and_its_spine_want_at_once_is_fetched_once(
    is_own_first: bool, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = _held_up(monkeypatch)
    async with _fork(4) as fork, trio.open_nursery() as nursery:
        scene, there = fork.scene, made_spine().at(made_spine().left)
        tree = tree_of(fork.agreed.link).add_all((c.link, c.certificate) for c in (fork.ours, *fork.theirs))
        scene.bench.state = replace(scene.bench.state, link=fork.ours.link, tree=tree)
        donors = tuple(party.peer for party in scene.others)

        def follow() -> None:
            nursery.start_soon(scene.pursuer.prepare_with_spine, there, donors)

        def own() -> None:
            scene.prepare(fork.agreed, fork.theirs)

        first, second = (own, follow) if is_own_first else (follow, own)
        first()
        await until(lambda: _downloads(scene) == 1, 5.0)
        second()
        await trio.sleep(10.0)
        gate.set()
        await scene.bench.until_reported(SwitchPrepared)
        await until(lambda: scene.pursuer.prepared_with(there) is not None, 5.0)
        follow()
        await trio.sleep(10.0)
        assert scene.pursuer.prepared_with(there) is not None
        assert len(_parts(scene)) == len(set(_parts(scene))) > 0
        nursery.cancel_scope.cancel()


async def test_a_lineage_of_which_more_is_wanted_meanwhile_is_fetched_once(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = _held_up(monkeypatch)
    async with _fork(5) as fork:
        scene = fork.scene
        scene.prepare(fork.agreed, fork.theirs[:4])
        await until(lambda: _downloads(scene) == 1, 5.0)
        scene.prepare(fork.agreed, fork.theirs)
        await until(lambda: _downloads(scene) == 2, 5.0)
        gate.set()
        await scene.bench.until_reported(SwitchPrepared)
        await fork.assert_switched()
        assert {part.commit for part in _parts(scene)} == {fork.theirs[3].link.commit}, "the first one ended"


async def test_where_the_state_at_the_fork_is_gone_a_whole_state_is_taken_and_the_latest_work_kept(
    autojump_clock: Clock,
) -> None:
    async with _fork(2) as fork:
        scene = fork.scene
        trainer = scene.bench.trainer
        trainer.theta_N = scene.party.chain.state.anchor_N + 0.5
        for name in list(scene.party.disk.files):
            scene.party.spoil(name)
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        await scene.switch(fork.agreed, fork.theirs)
        await scene.bench.adopter.wait_adopted()
        won_N = scene.others[0].chain.state.anchor_N
        torch.testing.assert_close(trainer.theta_N, won_N + 0.5, rtol=1e-5, atol=1e-5)
        assert trainer.tokens == TOKENS


async def test_a_switch_puts_our_work_since_the_fork_on_the_anchor_that_won(autojump_clock: Clock) -> None:
    async with _fork(2) as fork:
        scene = fork.scene
        agreed = await state_at(scene.party.chain, fork.agreed.link.commit)
        assert agreed is not None
        before_N, tokens = scene.bench.trainer.theta_N, scene.bench.trainer.tokens
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        await scene.switch(fork.agreed, fork.theirs)
        await scene.bench.adopter.wait_adopted()
        expected_N = scene.others[0].chain.state.anchor_N + before_N - agreed.anchor_N
        torch.testing.assert_close(scene.bench.trainer.theta_N, expected_N, rtol=1e-5, atol=1e-5)
        assert scene.bench.trainer.tokens == tokens + TOKENS, "our lone commit had spent these"
        newest = scene.bench.published[-1]
        assert isinstance(newest, LineageSwitched)
        assert newest.lost == (fork.ours.link,)


async def test_a_switch_tells_what_was_voted_on_the_new_head_before(autojump_clock: Clock) -> None:
    async with _fork(2) as fork:
        ballot = Ballot(3, PeerId("earlier"))
        await fork.scene.party.log.log_promise(fork.theirs[-1].link.commit, ballot)
        fork.scene.prepare(fork.agreed, fork.theirs)
        await fork.scene.bench.until_reported(SwitchPrepared)
        await fork.scene.switch(fork.agreed, fork.theirs)
        assert (await fork.scene.bench.until_reported(Switched)).open_round.promised == ballot


async def test_a_switch_whose_bytes_nobody_gives_fails_and_one_that_is_unwanted_ends_silently(
    autojump_clock: Clock,
) -> None:
    async with _fork(2) as fork:
        scene = fork.scene
        for party in scene.others:
            for name in [name for name in party.disk.files if name.startswith("results/")]:
                del party.disk.files[name]
        scene.prepare(fork.agreed, fork.theirs)
        failed = await scene.bench.until_reported(SwitchFailed, within_s=2 * GATHER_WITHIN_S + 5.0)
        assert "no live peer has" in failed.why
        assert failed.missing == fork.theirs[-1].link.commit, "a whole state before it was to be had"
        scene.prepare(fork.agreed, fork.theirs)
        await trio.sleep(5.0)
        scene.bench.state = replace(scene.bench.state, switching=None)
        await trio.sleep(2 * GATHER_WITHIN_S)
        assert scene.bench.events == []
        assert scene.party.chain.head == fork.ours.link


async def _given_up(fork: Fork) -> tuple[str, ...]:
    """The first of two commits comes, the second does not, and the lineage is not to be followed now; the names of what came."""
    scene, (first, second) = fork.scene, fork.theirs
    _lose_results(fork, second)
    scene.prepare(fork.agreed, fork.theirs)
    await trio.sleep(5.0)
    scene.bench.state = replace(scene.bench.state, switching=None)
    await trio.sleep(2 * GATHER_WITHIN_S)
    names = tuple(part.result_hash.hex() for part in first.record.slices)
    assert _on_disk(scene.party, names)
    return names


def _on_disk(party: Party, names: Sequence[str]) -> bool:
    return any(name.rpartition("/")[2] in names for name in party.disk.files)


async def _go_on(fork: Fork, seed: int) -> None:
    """One more commit on our own lineage."""
    scene = fork.scene
    commit = scene.world.commit_on(scene.party.chain.head, seed, members=[0], is_lone=True)
    await commit.write_results(scene.party)
    await scene.commit(commit)
    assert scene.party.chain.head == commit.link


async def test_what_was_brought_of_a_lineage_that_is_not_wanted_any_more_goes_with_the_next_commit(
    autojump_clock: Clock,
) -> None:
    """Seed 35 of the stories of experts apart: the first bytes of a lineage that nobody had any more lay at one peer for good."""
    async with _fork(2) as fork:
        names, party = await _given_up(fork), fork.scene.party
        await _go_on(fork, 70)
        assert not _on_disk(party, names)
        assert _on_disk(party, [part.result_hash.hex() for part in fork.ours.record.slices]), "our own stay"
        assert await state_at(party.chain, fork.agreed.link.commit) is not None


async def test_what_was_brought_of_a_lineage_that_is_to_be_followed_still_stays_until_its_rest_comes(
    autojump_clock: Clock,
) -> None:
    async with _fork(2) as fork:
        scene = fork.scene
        tree = tree_of(fork.agreed.link).add_all((c.link, c.certificate) for c in (fork.ours, *fork.theirs))
        names = await _given_up(fork)
        scene.bench.state = replace(scene.bench.state, tree=tree)
        await _go_on(fork, 70)
        assert _on_disk(scene.party, names), "on a thin line it takes long to come again"
        await fork.theirs[1].write_results(scene.others[1])
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        scene.bench.state = replace(scene.bench.state, tree=tree_of(fork.agreed.link))
        await _go_on(fork, 71)
        assert _on_disk(scene.party, names), "it is about to be flipped to"
        await fork.assert_switched()
        assert _on_disk(scene.party, names)


async def test_what_was_prepared_to_follow_the_spine_is_held_until_it_is_not_to_be_followed_any_more(
    autojump_clock: Clock,
) -> None:
    async with _fork(2) as fork:
        scene, spine = fork.scene, made_spine()
        there = spine.at(spine.left)
        tree = tree_of(fork.agreed.link).add_all((c.link, c.certificate) for c in (fork.ours, *fork.theirs))
        scene.bench.state = replace(scene.bench.state, link=fork.ours.link, tree=tree)
        await scene.pursuer.prepare_with_spine(there, ())
        await _go_on(fork, 70)
        prepared = scene.pursuer.prepared_with(there)
        assert prepared is not None, "our next commit changes nothing"
        held, prepared = weakref.ref(prepared), None
        names = [part.result_hash.hex() for commit in fork.theirs for part in commit.record.slices]
        assert _on_disk(scene.party, names)
        scene.bench.state = replace(scene.bench.state, tree=tree_of(fork.agreed.link))
        await _go_on(fork, 71)
        gc.collect()
        assert held() is None, "a whole state is in it"
        assert not _on_disk(scene.party, names)


def _lose_results(fork: Fork, commit: MadeCommit) -> None:
    """The others have them no more."""
    assert commit.link.record is not None
    gone = {part.result_hash.hex() for part in commit.link.record.slices}
    for party in fork.scene.others:
        for name in [name for name in party.disk.files if name.rpartition("/")[2] in gone]:
            del party.disk.files[name]


async def test_where_nobody_has_the_first_results_of_a_lineage_any_more_a_whole_state_is_taken(
    autojump_clock: Clock,
) -> None:
    async with _fork(2) as fork:
        _lose_results(fork, fork.theirs[0])
        fork.scene.prepare(fork.agreed, fork.theirs)
        await fork.scene.bench.until_reported(SwitchPrepared, within_s=GATHER_WITHIN_S + 5.0)
        await fork.assert_switched()


async def test_a_lineage_of_which_nobody_gives_a_state_is_named_by_the_first_commit_without_results(
    autojump_clock: Clock,
) -> None:
    async with _fork(4, is_attested=False) as fork:
        _lose_results(fork, fork.theirs[1])
        fork.scene.prepare(fork.agreed, fork.theirs)
        failed = await fork.scene.bench.until_reported(SwitchFailed, within_s=GATHER_WITHIN_S + 15.0)
        assert failed.missing == fork.theirs[1].link.commit


async def test_no_state_is_fetched_of_before_the_results_that_are_missing(autojump_clock: Clock) -> None:
    async with _fork(3) as fork:
        _lose_results(fork, fork.theirs[2])
        fork.scene.prepare(fork.agreed, fork.theirs)
        failed = await fork.scene.bench.until_reported(SwitchFailed, within_s=GATHER_WITHIN_S + 15.0)
        assert failed.missing == fork.theirs[2].link.commit
        assert _asked(fork.scene, FetchState) == []


async def test_a_switch_that_cannot_be_written_changes_nothing_and_may_be_tried_again(autojump_clock: Clock) -> None:
    async with _fork(2) as fork:
        scene = fork.scene
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        scene.party.disk.fail_with_disk_full_after(10)
        await scene.switch(fork.agreed, fork.theirs)
        failed = await scene.bench.until_reported(SwitchFailed)
        assert (failed.target, "no space" in failed.why) == (fork.theirs[-1].link.commit, True)
        assert (scene.party.chain.head, scene.bench.adopter.is_idle) == (fork.ours.link, True)
        scene.party.disk.capacity_bytes = UNBOUNDED_BYTES
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        await fork.assert_switched()


async def test_a_lineage_whose_bytes_cannot_be_written_fails_and_may_be_brought_later(autojump_clock: Clock) -> None:
    async with _fork(2) as fork:
        scene = fork.scene
        scene.party.disk.fail_with_disk_full_after(10)
        scene.prepare(fork.agreed, fork.theirs)
        failed = await scene.bench.until_reported(SwitchFailed)
        assert (failed.target, "no space" in failed.why) == (fork.theirs[-1].link.commit, True)
        assert failed.missing is None
        scene.party.disk.capacity_bytes = UNBOUNDED_BYTES
        scene.prepare(fork.agreed, fork.theirs)
        await scene.bench.until_reported(SwitchPrepared)
        await fork.assert_switched()


async def test_a_flip_to_another_lineage_than_the_prepared_one_fails(autojump_clock: Clock) -> None:
    async with _fork(3) as fork:
        fork.scene.prepare(fork.agreed, fork.theirs)
        await fork.scene.bench.until_reported(SwitchPrepared)
        await fork.scene.switch(fork.agreed, fork.theirs[:2])
        failed = await fork.scene.bench.until_reported(SwitchFailed)
        assert failed.target == fork.theirs[1].link.commit
        assert fork.scene.party.chain.head == fork.ours.link


async def test_others_that_have_forgotten_what_comes_after_our_head_are_named_once(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("averaging.rounds.lineage_driver.MAX_DEPTH", 2)
    async with _scene() as scene:
        made, (donor, *_) = scene.world.commits(4), scene.others
        donor.serve_frames([])
        order = CatchUp(donor.peer, (scene.world.genesis.head,))
        scene.party.milestones.take([scene.world.milestone_at(made[1])], "the host")
        with capture_logs() as logs:
            await scene.pursuer.catch_up(order)
            assert logs == []
            scene.party.milestones.take([scene.world.milestone_at(made[3])], "the host")
            for _ in range(2):
                await trio.sleep(60.0)
                await scene.pursuer.catch_up(order)
        assert [line["event"] for line in logs] == ["out_of_reach"]


# --- with the machine ---------------------------------------------------------------------------------------------------------


async def test_catching_up_asks_only_for_what_is_missing(autojump_clock: Clock) -> None:
    async def behind(world: RoundWorld, party: Party) -> None:
        made = world.commits(3)
        for commit in made[:2]:
            await party.apply(commit)
        party.boot()
        await made[2].write_results(party, slices=[0])

    async with one_service(behind) as (world, life, _):
        made, donor = world.commits(5), world.parties[1]
        for commit in made:
            await donor.apply(commit)
        donor.serve_fetches()
        await tell(donor, life.party, heartbeat_at(donor, made[4].link))
        await until(lambda: life.index == 5, 30.0)
        assert life.service.chain.root == donor.chain.root
        requests = [request for _, request in donor.asked]
        asked_after = {request.known[0] for request in requests if isinstance(request, FetchCommits)}
        assert asked_after == {made[1].link.commit}
        missing = [(commit.record.parent, part.first_chunk) for commit in made[2:] for part in commit.record.slices]
        asked_results = [(r.base, r.first_chunk) for r in requests if isinstance(r, FetchResult)]
        assert sorted(asked_results) == sorted(missing[1:])


async def test_a_liar_ahead_of_us_moves_nothing_and_an_honest_peer_still_can(autojump_clock: Clock) -> None:
    async with one_service() as (world, life, _):
        commit, liar, honest = world.commits(1)[0], world.parties[1], world.parties[2]
        forged = replace(commit.certificate, acks=commit.certificate.acks[:1])
        liar.serve_frames([encode_certificate(forged)])
        await tell(liar, life.party, heartbeat_of(liar, index=3))
        await until(lambda: bool(liar.asked), 5.0)
        await trio.sleep(5.0)
        assert life.index == 0
        await honest.apply(commit)
        honest.serve_fetches()
        await tell(honest, life.party, Committed(life.service.config.unit, commit.certificate))
        await until(lambda: life.index == 1 and life.service.has_adopted, 10.0)
        assert life.service.chain.root == honest.chain.root


@pytest.mark.parametrize("trouble", ["nobody has its bytes", "the disk is full"])
async def test_a_commit_that_stalled_is_applied_when_somebody_speaks_of_it_again(
    trouble: str, autojump_clock: Clock
) -> None:
    async with one_service() as (world, life, _):
        commit, donor = world.commits(1)[0], world.parties[1]
        donor.serve_fetches()
        if trouble == "the disk is full":
            await commit.write_results(life.party)
            life.party.disk.fail_with_disk_full_after(10)
        await tell(donor, life.party, Committed(life.service.config.unit, commit.certificate))
        await trio.sleep(70.0)
        assert (life.index, life.service.state.open.committing) == (0, None)
        await donor.apply(commit)
        life.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await tell(donor, life.party, heartbeat_at(donor, commit.link))
        await until(lambda: life.index == 1 and life.service.has_adopted, 10.0)
        assert life.service.chain.root == donor.chain.root


async def test_a_service_alone_on_its_lineage_goes_over_to_the_quorums(autojump_clock: Clock) -> None:
    async def alone(world: RoundWorld, party: Party) -> None:
        await party.apply(world.commit_on(world.start, 5, members=[0], is_lone=True))
        party.boot()

    async with one_service(alone) as (world, life, _):
        theirs, donor = [world.commit_on(world.start, 6, members=[1, 2])], world.parties[1]
        theirs.append(world.commit_on(theirs[0].link, 7, members=[1, 2]))
        for commit in theirs:
            await donor.apply(commit)
        donor.serve_fetches()
        await tell(donor, life.party, heartbeat_at(donor, theirs[1].link))
        await until(lambda: life.service.chain.head == theirs[1].link, 10.0)
        await until(lambda: life.service.has_adopted, 10.0)
        assert life.service.state.link == theirs[1].link
        assert life.service.chain.root == donor.chain.root
