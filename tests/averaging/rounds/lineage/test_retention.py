"""Which votes, updates and states a unit keeps on disk, when large states are written, and what a start makes of them."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest
import torch
import trio
import trio.testing

from averaging.codecs import codec_by_name, codec_names
from averaging.rounds.lineage import retention as keeping
from averaging.rounds.lineage import unit_chain as unit
from averaging.rounds.lineage.earlier_states import state_at
from averaging.rounds.lineage.updates import UnitContext
from averaging.state.generations import Generations
from averaging.state.log_entries import LOG_NAME
from averaging.state.state import UnitState
from averaging.state.unit_log import LogLimits, UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import StorageError
from protocol.estimates.unit_disk import (
    MAX_PINNED,
    OLD_GENERATIONS,
    OPEN_UPDATES,
    Occasion,
    commit_write_bytes,
    max_updates,
)
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import Ballot
from protocol.rounds.state import OpenRound
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.rounds.round_world import (
    RUN_ID,
    SPACING,
    UNIT,
    VERIFIER,
    MadeCommit,
    Party,
    RoundWorld,
    open_world,
    tree_nodes,
)
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
MOST_GENERATIONS = 2 + OLD_GENERATIONS + 1 + MAX_PINNED
ATTEMPT = 3
EAGER = LogLimits(growth=1, slack_bytes=0)
"""Written anew at every chance."""


async def _ack(party: Party, commit: MadeCommit) -> Ballot:
    ballot = Ballot(ATTEMPT, party.peer)
    await party.log.log_ack(commit.record.parent, ballot, commit.certificate.record)
    return ballot


async def _compact(party: Party) -> None:
    await party.log.compact([link.commit for link in party.chain.links[-party.chain.num_kept_votes :]])


async def test_who_comes_to_stand_on_a_base_whose_votes_were_dropped_casts_none_on_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been in the quorum that decided the base, and others who lost that commit may ask it again."""
    monkeypatch.setattr(keeping, "KEPT_VOTES", 2)
    async with open_world() as world:
        party = world.parties[0]
        made = world.commits(party.chain.num_kept_updates + 4)
        ballots = []
        for commit in made:
            ballots.append(await _ack(party, commit))
            await party.apply(commit)
        await _compact(party)
        num_whole = party.chain.num_kept_votes - 1  # one of them is the open base
        known = (await party.log.load()).bases
        assert [known[commit.record.parent].acked is None for commit in made] == [
            number < len(made) - num_whole for number in range(len(made))
        ]
        for name in [*party.generation_names(), *(n for n in party.disk.files if made[2].link.commit.hex() in n)]:
            party.spoil(name)
        party.crash()
        party.boot()
        opened = await party.chain.restore()
        assert party.chain.head.commit == world.genesis.head
        assert (opened.has_left, opened.acked) == (True, None)
        assert (opened.promised, opened.highest_attempt) == (ballots[0], ATTEMPT), "no attempt under a name it had"


async def test_who_comes_back_to_a_base_of_the_newest_knows_its_votes(autojump_clock: Clock) -> None:
    async with open_world() as world:
        party, made = world.parties[0], world.commits(2)
        for commit in made:
            await party.apply(commit)
        commit = world.commit_on(made[1].link, 2)
        ballot = await _ack(party, commit)
        await party.apply(commit)
        await _compact(party)
        for name in party.generation_names():
            party.spoil(name)
        party.spoil(f"results/{made[1].link.commit.hex()}/{commit.record.slices[0].result_hash.hex()}")
        party.crash()
        party.boot()
        opened = await party.chain.restore()
        assert party.chain.head == made[1].link
        assert opened.acked is not None
        assert (opened.has_left, opened.acked.ballot) == (False, ballot)


async def test_the_votes_on_a_base_that_a_download_leads_to_are_those_cast_there(autojump_clock: Clock) -> None:
    """It was there before, and had lost the results since."""
    async with open_world() as world:
        made, (party, donor) = world.commits(3), world.parties[:2]
        for commit in made:
            await party.apply(commit)
            await donor.apply(commit)
        ballot = await _ack(party, world.commit_on(made[2].link, 3))
        for name in [*party.generation_names(), *(n for n in party.disk.files if "results/" in n)]:
            party.spoil(name)
        await party.restart()
        assert party.chain.head.commit == world.genesis.head
        await party.chain.start_from(donor.chain.state, donor.chain.line.certificates)
        opened = await party.chain.votes_on_head()
        assert opened.acked is not None
        assert opened.acked.ballot == ballot


class RefusingLog(UnitLog):
    """It can be appended to alone."""

    async def compact(self, newest: Collection[CommitId]) -> None:
        raise StorageError("no space left on the disk", "some")


async def test_a_disk_that_refuses_to_write_the_log_anew_costs_nothing_but_room(autojump_clock: Clock) -> None:
    async with open_world() as world:
        party, made = world.parties[0], world.commits(1)
        await party.apply(made[0])
        party.chain.tools = replace(party.chain.tools, log=RefusingLog(MemoryStorage(party.disk), EAGER))
        for attempt in range(3):
            await party.chain.tools.log.log_ack(made[0].link.commit, Ballot(attempt, party.peer), b"record")
        await party.apply(world.commit_on(made[0].link, 1))
        assert party.chain.head.index == 2
        num_entries = len(party.disk.logs[LOG_NAME])
        await party.chain.restore()
        party.chain.tools = replace(party.chain.tools, log=UnitLog(MemoryStorage(party.disk), EAGER))
        await party.chain.restore()
        assert (party.chain.head.index, len(party.disk.logs[LOG_NAME])) == (2, num_entries - 1)


async def test_a_base_of_a_lineage_that_was_left_is_still_one_whose_votes_were_dropped(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is off the lineage. A peer that serves that lineage only up to this base would let us vote again."""
    monkeypatch.setattr(unit.UnitChain, "num_kept_votes", 1)
    async with open_world() as world:
        party, shared = world.parties[0], world.commits(1)[0]
        await party.apply(shared)
        ours = [world.commit_on(shared.link, 5, members=[0], is_lone=True)]
        ours.append(world.commit_on(ours[0].link, 6, members=[0], is_lone=True))
        await party.apply(ours[0])
        await _ack(party, ours[1])
        await party.apply(ours[1])
        await _compact(party)
        theirs = world.commit_on(shared.link, 7, members=[1, 2])
        await _switch(party, shared, [theirs])
        await _compact(party)
        await party.restart()
        assert not party.chain.line.has(ours[0].link.commit)
        opened = await _switch(party, shared, [ours[0]])
        assert party.chain.head == ours[0].link
        assert opened.has_left


async def test_on_a_disk_with_room_for_less_than_a_state_old_ones_make_room_for_the_new(autojump_clock: Clock) -> None:
    async with open_world() as world:
        party, made = world.parties[0], world.commits(4)
        for commit in made[:3]:
            await party.apply(commit)
        await made[3].write_results(party)
        await party.chain.prove(await party.chain.apply(made[3].link, made[3].certificate))
        newest = party.generation_names()[-1]
        party.disk.fail_with_disk_full_after(len(party.disk.files[newest]) // 2)
        await party.chain.keep()
        refs = await party.generations.list()
        assert [ref.commit for ref in refs[-2:]] == [made[2].link.commit, made[3].link.commit]
        assert not party.generations.refused


async def test_a_disk_that_takes_no_generation_keeps_the_newest_it_has_and_drops_updates_that_are_due(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world() as world:
        party, made = world.parties[0], world.commits(2)
        for commit in made:
            await party.apply(commit)

        async def refuse(*_: object) -> None:
            raise StorageError("no space left on the disk", "a state's room")

        most = max_updates(party.chain.num_kept_updates)
        with monkeypatch.context() as full:
            full.setattr(Generations, "write", refuse)
            for seed in range(2 * most):
                await party.apply(world.commit_on(party.chain.head, seed))
        bases = {name.split("/")[1] for name in party.disk.files if name.startswith("results/")}
        assert len(bases) <= most
        assert any(made[1].link.commit.hex() in name for name in party.generation_names())
        await party.apply(world.commit_on(party.chain.head, 1))
        assert any(party.chain.head.commit.hex() in name for name in party.generation_names())


async def test_updates_of_a_commit_that_the_next_one_overtook_before_it_was_kept_go_later(
    autojump_clock: Clock,
) -> None:
    async with open_world() as world:
        party = world.parties[0]
        chain = party.chain
        most = max_updates(chain.num_kept_updates)
        for seed in range(3 * most):
            commit = world.commit_on(chain.head, seed)
            await commit.write_results(party)
            await chain.prove(await chain.apply(commit.link, commit.certificate))
            if seed % 2:
                await chain.keep()
        bases = {name.split("/")[1] for name in party.disk.files if name.startswith("results/")}
        assert len(bases) <= chain.num_kept_updates + 1


async def test_a_lineage_that_is_brought_here_has_a_place_on_the_disk_beside_our_own(autojump_clock: Clock) -> None:
    """Seed 2001 of the recovery stories: a peer that came back had all its updates, and those of the lineage that it was to follow."""
    async with open_world() as world:
        party = world.parties[0]
        for commit in world.commits(party.chain.num_kept_updates + 3):
            await party.apply(commit)
        link = party.chain.links[1]
        for seed in range(party.chain.num_kept_updates + 1):
            theirs = world.commit_on(link, 1000 + seed, members=[1, 2])
            await theirs.write_results(party)
            link = theirs.link
        bases = {name.split("/")[1] for name in party.disk.files if name.startswith("results/")}
        assert len(bases) <= max_updates(party.chain.num_kept_updates)
        assert len(bases) > party.chain.num_kept_updates + 1 + OPEN_UPDATES, "more than our own"


async def _switch(party: Party, fork: MadeCommit, commits: list[MadeCommit]) -> OpenRound:
    for commit in commits:
        await commit.write_results(party)
    state = await state_at(party.chain, fork.link.commit)
    assert state is not None
    path = tree_nodes(commits)
    prepared = await party.chain.prepared(
        fork.link.commit, path, state, await party.chain.replay(state, path, is_own=False)
    )
    return await party.chain.switch(prepared)


@pytest.mark.parametrize("codec_name", codec_names())
@pytest.mark.parametrize("num_elements", [1, 300, 600, 601, 6000, 6599])
def test_what_a_commit_weighs_is_the_sum_of_its_chunks(codec_name: str, num_elements: int) -> None:
    codec, grid = codec_by_name(codec_name), ChunkGrid(num_elements, 600)
    spans = map(grid.bounds, range(grid.num_chunks))
    assert keeping.update_bytes(codec, grid) == sum(codec.encoded_bytes(stop - start) for start, stop in spans)


async def test_a_genesis_state_that_is_not_held_is_made_once_more(autojump_clock: Clock) -> None:
    async with open_world() as world:
        tools, times = world.parties[0].chain.tools, list[int]()

        def make() -> UnitState:
            times.append(1)
            return world.genesis

        copied = await keeping.genesis_state(world.genesis, tools)
        assert (copied.header, times) == (world.genesis.header, [])
        assert copied.anchor_N is not world.genesis.anchor_N, "whoever asks for it moves it in place"
        assert torch.equal(copied.anchor_N, world.genesis.anchor_N)
        assert await keeping.genesis_state(make, tools) is world.genesis
        assert times == [1]


# --- large states, which are not written after every commit ------------------------------------------------------------


async def _indices(party: Party) -> list[int]:
    return [ref.index for ref in await party.generations.list()]


async def _grown(world: RoundWorld, num_commits: int, number: int = 0) -> tuple[Party, list[MadeCommit]]:
    party, made = world.parties[number], world.commits(num_commits)
    for commit in made:
        await party.apply(commit)
    return party, made


async def test_a_large_state_is_written_at_every_few_commits_the_same_for_all(autojump_clock: Clock) -> None:
    async with open_world(is_large=True) as world:
        party, made = await _grown(world, 3 * SPACING)
        late = world.parties[1]
        assert keeping.generation_spacing(party.chain.tools) == SPACING
        assert await _indices(party) == [SPACING, 2 * SPACING, 3 * SPACING]
        for commit in made[: SPACING + 2]:
            await late.apply(commit)
        await late.chain.keep(Occasion.WANTED)
        for commit in made[SPACING + 2 :]:
            await late.apply(commit)
        assert (await _indices(late))[-2:] == [2 * SPACING, 3 * SPACING]


@pytest.mark.parametrize("num_commits", range(1, 2 * SPACING + 2))
async def test_a_restart_after_commits_that_were_not_written_comes_back_to_the_head(
    num_commits: int, autojump_clock: Clock
) -> None:
    async with open_world(is_large=True) as world:
        party, made = await _grown(world, num_commits)
        root = party.chain.root
        await party.restart()
        assert (party.chain.head, party.chain.root) == (made[-1].link, root)


@pytest.mark.parametrize("num_more", range(SPACING))
async def test_a_restart_on_a_damaged_newest_state_replays_more(num_more: int, autojump_clock: Clock) -> None:
    """The one before is the oldest that the kept updates must reach."""
    async with open_world(is_large=True) as world:
        party, made = await _grown(world, 4 * SPACING + num_more)
        root, newest = party.chain.root, party.generation_names()[-1]
        party.spoil(newest)
        await party.restart()
        assert (party.chain.head, party.chain.root) == (made[-1].link, root)
        assert newest not in party.disk.files


@pytest.mark.parametrize("num_more", range(SPACING))
async def test_every_commit_since_the_last_but_one_state_on_disk_can_be_computed(
    num_more: int, autojump_clock: Clock
) -> None:
    """Another lineage may have left ours at any of them."""
    async with open_world(is_large=True) as world:
        party, made = await _grown(world, 5 * SPACING + num_more)
        for commit in made[-SPACING - num_more - 1 :]:
            state = await state_at(party.chain, commit.link.commit)
            assert state is not None
            assert (state.head, state.index) == (commit.link.commit, commit.link.index)


async def test_the_last_commit_of_a_quorum_can_be_computed_however_many_lone_ones_follow(autojump_clock: Clock) -> None:
    async with open_world(is_large=True) as world:
        party, made = await _grown(world, 2 * SPACING + 3)
        agreed = made[-1]
        for seed in range(6 * SPACING):
            await party.apply(world.commit_on(party.chain.head, 50 + seed, members=[0], is_lone=True))
            state = await state_at(party.chain, agreed.link.commit)
            assert state is not None
            assert state.index == agreed.link.index
        root = party.chain.root
        await party.restart()
        assert (party.chain.head.index, party.chain.root) == (agreed.link.index + 6 * SPACING, root)


async def test_a_state_that_the_disk_refused_is_written_at_the_next_commit(autojump_clock: Clock) -> None:
    async with open_world(is_large=True) as world:
        party, _ = await _grown(world, 2 * SPACING - 1)
        due = world.commit_on(party.chain.head, 91)
        await due.write_results(party)
        await party.chain.prove(await party.chain.apply(due.link, due.certificate))
        party.disk.fail_with_disk_full_after(-len(party.disk.files[party.generation_names()[0]]))
        await party.chain.keep()
        assert party.generations.refused
        party.disk.capacity_bytes = MemoryDisk().capacity_bytes
        assert (await _indices(party))[-1] == SPACING
        await party.apply(world.commit_on(party.chain.head, 92))
        assert (await _indices(party))[-1] == 2 * SPACING + 1
        await party.apply(world.commit_on(party.chain.head, 93))
        assert (await _indices(party))[-1] == 2 * SPACING + 1


async def test_the_last_state_of_a_run_is_written_once(autojump_clock: Clock) -> None:
    async with open_world(is_large=True) as world:
        party, _ = await _grown(world, SPACING + 2)
        assert (await _indices(party))[-1] == SPACING
        await party.chain.keep(Occasion.WANTED)
        assert (await _indices(party))[-1] == SPACING + 2
        party.disk.fail_with_disk_full_after(0)
        await party.chain.keep(Occasion.WANTED)
        assert not party.generations.refused, "it is there"


class CountingDisk(MemoryDisk):
    """Adds up all that is written."""

    num_written = 0

    def begin(self, name: str, record: bytes) -> int:
        self.num_written += len(record)
        return super().begin(name, record)


@pytest.mark.parametrize("codec_name", ["int8", "fp32", "int4"])
@pytest.mark.parametrize("has_momentum", [False, True])
async def test_disk_writes_are_one_and_a_half_times_the_results_on_average_and_the_bound_holds(
    codec_name: str, has_momentum: bool, autojump_clock: Clock
) -> None:
    num_values, num_commits = 60_000, 64
    disk, grid, codec = CountingDisk(), ChunkGrid(num_values, 10_000), codec_by_name(codec_name)
    storage, offload = MemoryStorage(disk), InlineOffload()
    log, generations = UnitLog(storage), Generations(storage, grid, offload)
    tools = UnitContext(RUN_ID, UNIT, VERIFIER, codec, grid, offload, log, generations, small_state_bytes=0)
    weight, spacing = keeping.update_bytes(codec, grid), keeping.generation_spacing(tools)
    told_bytes = commit_write_bytes(num_values, weight, num_commits, small_bytes=0)
    anchor_N = torch.randn(num_values)
    momentum_N = torch.randn(num_values) if has_momentum else torch.zeros(num_values)
    async with open_world() as world:
        links: list[ChainLink] = [world.start]
        for seed in range(num_commits):
            commit = world.commit_on(links[-1], seed)
            for part in commit.record.slices:
                await log.write_result(links[-1].commit, part.result_hash, bytes(weight // 2))
            links.append(commit.link)
            state = UnitState(UNIT, commit.link.commit, commit.link.index, 0, anchor_N, momentum_N)
            await keeping.keep_generation(tools, links, state, Root(bytes(32)), Occasion.COMMIT)
            assert sum(map(len, disk.files.values())) <= keeping.disk_bound_bytes(tools) - log.bound_bytes
            if seed + 1 == spacing:
                first_bytes = disk.num_written
    heads_bytes = 300 * (num_commits // spacing)  # a tiny state makes headers visible
    assert disk.num_written - first_bytes <= 1.5 * weight * (num_commits - spacing) + heads_bytes
    assert disk.num_written - first_bytes <= (num_commits - spacing) * told_bytes + heads_bytes


async def test_the_disk_holds_no_more_than_it_may_whatever_happens_to_large_states(autojump_clock: Clock) -> None:
    drawn = random.Random(5)
    async with open_world(is_large=True) as world:
        party = world.parties[0]
        for seed in range(60):
            is_lone = seed % 40 > 20
            await party.apply(world.commit_on(party.chain.head, seed, members=[0] if is_lone else (), is_lone=is_lone))
            if drawn.random() < 0.3:
                await party.chain.keep(drawn.choice([Occasion.ASKED, Occasion.WANTED, Occasion.REPLACED]))
            if drawn.random() < 0.2:
                party.generations.pin(party.chain.head.commit, trio.current_time())
            bases = {name.split("/")[1] for name in party.disk.files if name.startswith("results/")}
            assert len(bases) <= party.chain.num_kept_updates + 1
            assert len(party.generation_names()) <= MOST_GENERATIONS
            if seed % 15 == 14:
                root = party.chain.root
                await party.restart()
                assert (party.chain.head.index, party.chain.root) == (seed + 1, root)
