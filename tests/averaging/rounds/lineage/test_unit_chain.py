from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch
import trio
import trio.testing

from averaging.network.seams.interfaces import LOG_FRAME_BYTES
from averaging.rounds.lineage.earlier_states import recomputed, state_at
from averaging.rounds.lineage.unit_chain import lend
from averaging.rounds.traffic.transfer import fetch_commits
from averaging.state.log_entries import LOG_NAME, LoggedContribution, LoggedRounds
from averaging.state.state import STATE_BYTES_PER_VALUE, state_root
from averaging.state.unit_log import LogLimits, UnitLog
from averaging.storage.memory_storage import MemoryStorage
from protocol.errors import LocalProtocolError, PotluckError, RemoteProtocolError, StorageError
from protocol.estimates.unit_disk import KEPT_UPDATE_SNAPSHOTS
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from protocol.rounds.messages.messages import Certificate, Leave
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.wire import decode_certificate, encode_certificate, encode_message
from protocol.rounds.state import SignedLeave
from protocol.rounds.voting import LEAVE_VERSION
from tests.at_once import apply_outer_step
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    OUTER,
    RUN_ID,
    UNIT,
    VERIFIER,
    MadeCommit,
    Party,
    RoundWorld,
    apply_whole,
    open_world,
    raws_of,
    tree_nodes,
)
from tests.simulation.signing import AUTHORITY

Clock = trio.testing.MockClock
KEPT_UPDATES = KEPT_UPDATE_SNAPSHOTS * STATE_BYTES_PER_VALUE // 4
"""How many fp32 updates weigh as much as the snapshots that they are kept for."""


@asynccontextmanager
async def _after(
    num_commits: int, *, is_large: bool = False
) -> AsyncIterator[tuple[RoundWorld, list[MadeCommit], Party]]:
    """A party that applied some commits in order."""
    async with open_world(is_large=is_large) as world:
        made = world.commits(num_commits)
        for commit in made:
            await world.parties[0].apply(commit)
        yield world, made, world.parties[0]


# --- applying -----------------------------------------------------------------------------------------------------------------


async def test_each_commit_moves_the_state_by_one_outer_step_of_its_update(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        anchor_N, momentum_N = world.genesis.anchor_N, world.genesis.momentum_N
        for commit in world.commits(2):
            applied = await party.apply(commit)
            update_N = CODEC.decode(b"".join(commit.results), GRID.num_elements)
            torch.testing.assert_close(applied.previous_anchor_N, anchor_N, rtol=0, atol=0)
            anchor_N, momentum_N = apply_outer_step(anchor_N, momentum_N, update_N, OUTER)
            torch.testing.assert_close(applied.state.anchor_N, anchor_N, rtol=0, atol=0)
            torch.testing.assert_close(applied.state.momentum_N, momentum_N, rtol=0, atol=0)
            assert applied.state.head == party.chain.head.commit == commit.link.commit
            assert party.chain.root == state_root(applied.state, GRID)


async def test_a_follower_that_applies_the_certificates_of_another_has_its_root(autojump_clock: Clock) -> None:
    async with _after(3) as (world, made, leader):
        leader.serve_fetches()
        follower = world.parties[1]
        raws = await fetch_commits(follower.network, leader.peer, UNIT, [follower.chain.head.commit])
        for raw, commit in zip(raws, made, strict=True):
            certificate = decode_certificate(raw)
            link = verify_certificate(certificate, follower.chain.head, verifier=VERIFIER, run_id=RUN_ID)
            await commit.write_results(follower)
            await apply_whole(follower.chain, link, certificate)
        assert follower.chain.root == leader.chain.root != Root(bytes(32))
        assert follower.chain.line.certificates == leader.chain.line.certificates
        await world.parties[2].apply(world.commit_on(world.start, 99))
        assert world.parties[2].chain.root != leader.chain.root


@pytest.mark.parametrize("number", [0, 2])
async def test_a_commit_that_does_not_follow_the_head_is_refused(number: int, autojump_clock: Clock) -> None:
    async with _after(1) as (world, _, party):
        other = world.commits(3)[number]
        root = party.chain.root
        with pytest.raises(LocalProtocolError, match="follow"):
            await party.apply(other)
        assert (party.chain.head.index, party.chain.root) == (1, root)


async def test_a_commit_without_its_bytes_is_refused_before_anything_is_logged(autojump_clock: Clock) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party, slices=[1])
        with pytest.raises(LocalProtocolError, match="bytes"):
            await party.chain.apply(commit.link, commit.certificate)
        assert party.chain.head == made[0].link
        assert len((await party.log.load()).certificates) == 1


@pytest.mark.parametrize("is_cut", [False, True])
async def test_bytes_damaged_since_they_were_checked_are_not_applied_and_go_so_that_they_come_again(
    is_cut: bool, autojump_clock: Clock
) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party)
        root, part = party.chain.root, commit.record.slices[1]
        name = f"results/{commit.record.parent.hex()}/{part.result_hash.hex()}"
        party.spoil(name)
        party.disk.files[name] = party.disk.files[name][: -2 if is_cut else None]
        with pytest.raises(StorageError, match="damaged on our disk"):
            await party.chain.apply(commit.link, commit.certificate)
        assert (party.chain.head, party.chain.root) == (made[0].link, root)
        assert len((await party.log.load()).certificates) == 1
        held = [await party.log.holds_results(commit.record.parent, [s.result_hash]) for s in commit.record.slices]
        assert held == [True, False]
        await party.apply(commit)
        assert party.chain.head == commit.link


async def test_a_commit_stands_before_its_root_and_its_generation_and_a_crash_in_between_loses_nothing(
    autojump_clock: Clock,
) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        root, generations = party.chain.root, party.generation_names()
        await commit.write_results(party)
        applied = await party.chain.apply(commit.link, commit.certificate)
        assert (party.chain.head, party.chain.state) == (commit.link, applied.state)
        assert (party.chain.rooted, party.chain.root) == (made[0].link.commit, root)
        assert party.generation_names() == generations
        await party.restart()
        assert party.chain.head == commit.link
        assert party.chain.rooted == commit.link.commit
        assert party.chain.root == state_root(applied.state, GRID) == await party.chain.prove(applied)


async def test_a_commit_that_was_switched_away_before_its_root_was_known_is_not_what_stands_here(
    autojump_clock: Clock,
) -> None:
    async with _after(1) as (world, made, party):
        ours, theirs = world.commit_on(made[0].link, 5), world.commit_on(made[0].link, 6)
        await ours.write_results(party)
        applied = await party.chain.apply(ours.link, ours.certificate)
        await theirs.write_results(party)
        fork_state = await state_at(party.chain, made[0].link.commit)
        assert fork_state is not None
        path = tree_nodes([theirs])
        state = await party.chain.replay(fork_state, path, is_own=False)
        await party.chain.switch(await party.chain.prepared(made[0].link.commit, path, fork_state, state))
        assert await party.chain.prove(applied) == state_root(applied.state, GRID)
        assert (party.chain.rooted, party.chain.root) == (theirs.link.commit, state_root(state, GRID))


async def test_results_of_failed_attempts_go_when_the_commit_is_applied(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        commit = world.commit_on(party.chain.head, 1)
        await party.log.write_result(commit.record.parent, Root(b"l" * 32), b"leftover")
        await party.apply(commit)
        assert len(await party.log.list_results(commit.record.parent)) == len(commit.record.slices)


# --- restarting ---------------------------------------------------------------------------------------------------------------


async def test_a_restart_comes_back_to_the_same_head_and_root(autojump_clock: Clock) -> None:
    async with _after(3) as (world, made, party):
        root, raws = party.chain.root, raws_of(party.chain)
        await party.restart()
        assert (party.chain.head, party.chain.root) == (made[2].link, root)
        assert raws_of(party.chain) == raws
        following = world.commit_on(made[2].link, 3)
        await party.apply(following)
        for commit in (*made, following):
            await world.parties[1].apply(commit)
        assert party.chain.root == world.parties[1].chain.root


async def test_the_log_replays_what_the_newest_generation_lacks(autojump_clock: Clock) -> None:
    """As after a crash between a certificate and its generation."""
    async with _after(3) as (_, made, party):
        root = party.chain.root
        del party.disk.files[party.generation_names()[-1]]
        await party.restart()
        assert (party.chain.head, party.chain.root) == (made[2].link, root)


@pytest.mark.parametrize("num_spoilt", [1, 2])
async def test_damaged_generations_are_passed_over_and_the_log_leads_to_the_same_root(
    num_spoilt: int, autojump_clock: Clock
) -> None:
    async with _after(4) as (_, made, party):
        root = party.chain.root
        names = party.generation_names()
        assert len(names) == 2
        for name in names[-num_spoilt:]:
            party.spoil(name)
        await party.restart()
        assert (party.chain.head, party.chain.root) == (made[3].link, root)


async def test_a_crash_between_the_certificate_and_the_state_loses_nothing(autojump_clock: Clock) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party)
        await party.log.log_certificate(made[0].link.commit, encode_certificate(commit.certificate))
        await party.restart()
        assert party.chain.head == commit.link


@pytest.mark.parametrize(
    ("num_before", "moment_s"),
    [
        (1, 0.001),
        (1, 0.005),
        (2, 0.009),
        (1, 0.013),
        (1, 0.017),
        (3, 0.001),
        (3, 0.013),
        (3, 0.017),
        (4, 0.013),
        (1, 0.025),
    ],
)
async def test_a_crash_at_any_moment_of_applying_is_made_good_by_applying_again(
    num_before: int, moment_s: float, autojump_clock: Clock
) -> None:
    """The commit after the third is one that writes a large state."""
    async with _after(num_before, is_large=num_before > 1) as (world, made, party):
        commit = world.commit_on(made[-1].link, 5)

        async def apply() -> None:
            try:
                await party.apply(commit)
            except StorageError:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(apply)
            await trio.sleep(moment_s)
            party.crash()
        party.boot()
        await party.chain.restore()
        assert party.chain.head in (made[-1].link, commit.link)
        if party.chain.head == made[-1].link:
            await party.apply(commit)
        for each in (*made, commit):
            await world.parties[1].apply(each)
        assert party.chain.root == world.parties[1].chain.root


async def test_bytes_damaged_on_disk_are_not_replayed_but_wanted_again(autojump_clock: Clock) -> None:
    async with _after(3) as (_, made, party):
        root = party.chain.root
        for name in party.generation_names():
            party.spoil(name)
        damaged = made[1].record
        party.spoil(f"results/{damaged.parent.hex()}/{damaged.slices[1].result_hash.hex()}")
        await party.restart()
        assert party.chain.head == made[0].link
        assert not await party.log.holds_results(damaged.parent, [damaged.slices[1].result_hash])
        for commit in made[1:]:
            await party.apply(commit)
        assert party.chain.root == root
        await party.restart()
        assert (party.chain.head, party.chain.root) == (made[2].link, root)


async def test_the_log_of_another_run_is_refused(autojump_clock: Clock) -> None:
    async with _after(1) as (_, made, party), open_world(target_tokens=1) as other:
        stray = other.parties[0]
        stray.disk.logs = party.disk.logs
        with pytest.raises(StorageError, match="another run"):
            await stray.chain.restore()
        assert made[0].link.commit not in [link.commit for link in stray.chain.links]


# --- the open round -----------------------------------------------------------------------------------------------------------

ATTEMPT = 3


async def _ack(party: Party, commit: MadeCommit) -> Ballot:
    ballot = Ballot(ATTEMPT, party.peer)
    await party.log.log_ack(commit.record.parent, ballot, commit.certificate.record)
    return ballot


async def test_an_ack_whose_bytes_are_on_disk_is_remembered(autojump_clock: Clock) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party)
        ballot = await _ack(party, commit)
        party.boot()
        opened = await party.chain.restore()
        assert opened.acked is not None
        assert (opened.acked.ballot, opened.acked.record) == (ballot, commit.certificate.record)
        assert (opened.promised, opened.highest_attempt) == (ballot, ATTEMPT)


async def test_an_ack_holds_after_a_restart_whatever_became_of_its_bytes(autojump_clock: Clock) -> None:
    """A quorum may have counted it: it is told to whoever takes over, and they find the bytes elsewhere."""
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party)
        ballot = await _ack(party, commit)
        party.spoil(f"results/{commit.record.parent.hex()}/{commit.record.slices[1].result_hash.hex()}")
        party.boot()
        opened = await party.chain.restore()
        assert opened.acked is not None
        assert (opened.acked.ballot, opened.promised) == (ballot, ballot)
        assert party.chain.head == made[0].link


async def test_the_goodbyes_that_an_ack_may_rely_on_are_known_after_a_restart_but_for_damaged_ones(
    autojump_clock: Clock,
) -> None:
    async with _after(1) as (world, made, party):
        base, leaver = made[0].link.commit, world.parties[2]
        leave = Leave(leaver.member, UNIT, base, version=LEAVE_VERSION)
        raw = leaver.sign(encode_message(leave))
        record = world.commit_on(made[0].link, 5).certificate.record
        await party.log.log_ack(base, Ballot(ATTEMPT, party.peer), record, leaves=[raw, b"no goodbye"])
        party.boot()
        opened = await party.chain.restore()
        assert dict(opened.leaves) == {leaver.peer: SignedLeave(leave, raw)}
        assert party.chain.votes_on(base) == opened


async def test_a_lone_ack_is_remembered_beside_the_other(autojump_clock: Clock) -> None:
    async with _after(1) as (world, made, party):
        ballot = await _ack(party, world.commit_on(made[0].link, 5))
        lone = world.commit_on(made[0].link, 6, members=[0], is_lone=True)
        higher = Ballot(ATTEMPT + 1, party.peer)
        await party.log.log_ack(made[0].link.commit, higher, lone.certificate.record, lone=True)
        party.boot()
        opened = await party.chain.restore()
        assert opened.acked is not None
        assert opened.acked_lone is not None
        assert (opened.acked.ballot, opened.acked_lone.ballot, opened.promised) == (ballot, higher, higher)


async def test_a_goodbye_binds_on_its_base_and_names_no_attempt(autojump_clock: Clock) -> None:
    async with _after(1) as (world, made, party):
        await party.log.log_promise(made[0].link.commit, Ballot(LAST_ATTEMPT, party.peer))
        party.boot()
        opened = await party.chain.restore()
        assert (opened.has_left, opened.promised, opened.highest_attempt) == (True, None, 0)
        following = world.commit_on(made[0].link, 5)
        await party.apply(following)
        party.boot()
        assert not (await party.chain.restore()).has_left


async def test_what_was_promised_on_an_older_base_does_not_bind_the_open_one(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        commit = world.commit_on(party.chain.head, 1)
        await _ack(party, commit)
        await party.apply(commit)
        party.boot()
        opened = await party.chain.restore()
        assert (opened.promised, opened.acked) == (None, None)


async def test_data_goes_on_after_the_last_step_that_a_commit_counted(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        roots = [Root(bytes([n]) * 32) for n in range(1, 4)]
        await party.chain.log_contribution(party.chain.head.commit, LoggedContribution(roots[0], 100, 7))
        first = world.commit_on(party.chain.head, 1, roots=roots)
        await party.apply(first)
        # the second commit counts another contribution than the one that this peer logged
        await party.chain.log_contribution(first.link.commit, LoggedContribution(Root(b"x" * 32), 100, 15))
        await party.apply(world.commit_on(first.link, 2, roots=roots))
        assert party.chain.data_position() == 7
        await party.restart()
        assert party.chain.data_position() == 7


async def test_data_goes_on_after_what_any_session_offered_on_the_open_base(autojump_clock: Clock) -> None:
    """It may still be counted."""
    async with _after(0) as (world, _, party):
        roots = [Root(bytes([n]) * 32) for n in range(1, 4)]
        for root, next_step in ((roots[0], 7), (Root(b"x" * 32), 12), (Root(b"y" * 32), 9)):
            await party.chain.log_contribution(party.chain.head.commit, LoggedContribution(root, 100, next_step))
        await party.restart()
        assert party.chain.data_position() == 12
        await party.apply(world.commit_on(party.chain.head, 1, roots=roots))
        assert party.chain.data_position() == 7, "the others died untold"


# --- pruning ------------------------------------------------------------------------------------------------------------------


async def test_pruning_bounds_the_updates_and_keeps_what_a_replay_needs(autojump_clock: Clock) -> None:
    async with _after(KEPT_UPDATES + 4) as (_, made, party):
        held = [
            commit
            for commit in made
            if await party.log.holds_results(commit.record.parent, [s.result_hash for s in commit.record.slices])
        ]
        assert held == made[-KEPT_UPDATES:]
        kept = [made[index - 1].link.commit for index in (4, 8, 11, 12)]
        assert [ref.commit for ref in await party.generations.list()] == kept
        root = party.chain.root
        party.spoil(party.generation_names()[-1])
        await party.restart()
        assert (party.chain.head, party.chain.root) == (made[-1].link, root)


async def test_without_any_good_generation_a_pruned_chain_starts_over_and_says_where_it_is(
    autojump_clock: Clock,
) -> None:
    async with _after(KEPT_UPDATES + 1) as (world, _, party):
        for name in party.generation_names():
            party.spoil(name)
        await party.restart()
        assert party.chain.head.commit == world.genesis.head
        assert party.chain.line.certificates == []
        assert party.chain.root == state_root(world.genesis, GRID)


# --- other lineages -----------------------------------------------------------------------------------------------------------


async def test_the_state_at_an_earlier_commit_is_rebuilt_from_what_is_kept_and_unknown_before(
    autojump_clock: Clock,
) -> None:
    async with _after(0) as (world, _, party):
        roots = []
        for commit in world.commits(KEPT_UPDATES + 4):
            await party.apply(commit)
            roots.append(party.chain.root)
        for link, root in zip(party.chain.links[1:], roots, strict=True):
            state = await state_at(party.chain, link.commit)
            assert (state_root(state, GRID) if state is not None else None) == (root if link.index >= 4 else None)
        assert await state_at(party.chain, CommitId(b"?" * 32)) is None


async def test_the_state_at_the_last_commit_of_a_quorum_is_kept_however_long_we_go_on_alone(
    autojump_clock: Clock,
) -> None:
    async with _after(2) as (world, made, party):
        agreed = party.chain.state
        for seed in range(2 * KEPT_UPDATES):
            await party.apply(world.commit_on(party.chain.head, seed, members=[0], is_lone=True))
        await party.restart()
        assert party.chain.last_agreed == made[1].link
        fork = await state_at(party.chain, made[1].link.commit)
        assert fork is not None
        assert state_root(fork, GRID) == state_root(agreed, GRID)


@pytest.mark.parametrize("moment_s", [0.001, 0.005, 0.009, 0.013, 0.03])
async def test_a_crash_at_any_moment_of_a_switch_leaves_one_lineage_or_the_other(
    moment_s: float, autojump_clock: Clock
) -> None:
    async with _after(1) as (world, made, party):
        ours = world.commit_on(made[0].link, 5, members=[0], is_lone=True)
        await party.apply(ours)
        won = [world.commit_on(made[0].link, 6, members=[1, 2])]
        won.append(world.commit_on(won[0].link, 7, members=[1, 2]))
        for commit in won:
            await commit.write_results(party)
        fork = await state_at(party.chain, made[0].link.commit)
        assert fork is not None
        state = await party.chain.replay(fork, tree_nodes(won), is_own=False)
        prepared = await party.chain.prepared(made[0].link.commit, tree_nodes(won), fork, state)

        async def switch() -> None:
            try:
                await party.chain.switch(prepared)
            except StorageError:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(switch)
            await trio.sleep(moment_s)
            party.crash()
        party.boot()
        await party.chain.restore()
        chain = party.chain
        assert [link.commit for link in chain.links[2:]] in ([ours.link.commit], [c.link.commit for c in won])
        assert chain.root == state_root(chain.state, GRID)
        assert chain.state.head == chain.head.commit


async def test_bytes_that_the_disk_changed_after_the_ack_are_not_applied_and_are_fetched_again(
    autojump_clock: Clock,
) -> None:
    """Seed 6 of the recovery stories."""
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party)
        spoilt = next(name for name in party.disk.files if commit.record.slices[1].result_hash.hex() in name)
        party.spoil(spoilt)
        with pytest.raises(StorageError):
            await party.chain.apply(commit.link, commit.certificate)
        assert party.chain.head == made[0].link
        assert spoilt not in party.disk.files, "so that it is missed, and asked for"
        await commit.write_results(party, [1])
        await party.chain.apply(commit.link, commit.certificate)
        assert party.chain.head == commit.link


async def test_the_disk_never_holds_more_than_the_bound_that_is_told(autojump_clock: Clock) -> None:
    limits = LogLimits(slack_bytes=10_000)
    async with _after(1) as (world, _, party):
        party.chain.tools = replace(party.chain.tools, log=UnitLog(MemoryStorage(party.disk), limits))
        await party.chain.restore()
        log_sizes: list[int] = []
        for seed in range(600):
            for attempt in range(seed % 4):
                ballot = Ballot(attempt, party.peer)
                await party.chain.tools.log.log_ack(party.chain.head.commit, ballot, b"r" * 2000)
            party.generations.pin(party.chain.head.commit, trio.current_time())
            await party.apply(
                world.commit_on(party.chain.head, seed, members=[0] if seed % 3 == 0 else (), is_lone=seed % 3 == 0)
            )
            files = party.disk.files.items()
            num_bytes = sum(len(data) for _, data in files)
            heads = 200 * len(party.generation_names())  # a header each, which a tiny state makes visible
            log_sizes.append(sum(LOG_FRAME_BYTES + len(entry) for entry in party.disk.logs[LOG_NAME]))
            assert num_bytes + log_sizes[-1] <= party.chain.disk_bound_bytes + heads
            assert log_sizes[-1] <= party.chain.tools.log.bound_bytes
        assert sum(after < before for before, after in itertools.pairwise(log_sizes)) >= 2
        assert party.chain.tools.log.bound_bytes < 2.5 * sum(map(len, raws_of(party.chain))) + 300_000
        root, links, raws = party.chain.root, party.chain.links, raws_of(party.chain)
        await party.restart()
        assert (party.chain.root, party.chain.links, raws_of(party.chain)) == (root, links, raws)


async def test_who_cannot_read_its_votes_after_a_switch_stands_there_and_casts_none(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _after(1) as (world, made, party):
        await party.apply(world.commit_on(made[0].link, 5, members=[0], is_lone=True))
        won = [world.commit_on(made[0].link, 6, members=[1, 2])]
        await won[0].write_results(party)
        fork = await state_at(party.chain, made[0].link.commit)
        assert fork is not None
        state = await party.chain.replay(fork, tree_nodes(won), is_own=False)
        prepared = await party.chain.prepared(made[0].link.commit, tree_nodes(won), fork, state)

        async def refuse() -> LoggedRounds:
            raise StorageError("an input/output error", "a disk that can be read", "look at the disk")

        monkeypatch.setattr(party.chain.tools.log, "load", refuse)
        opened = await party.chain.switch(prepared)
        assert party.chain.head == won[0].link
        assert opened.has_left


async def test_a_lineage_taken_where_our_own_lost_its_bytes_is_the_one_after_a_restart(autojump_clock: Clock) -> None:
    async with _after(3) as (world, made, party):
        for name in [*party.generation_names(), *(n for n in party.disk.files if made[0].link.commit.hex() in n)]:
            party.spoil(name)
        await party.restart()
        assert party.chain.head == made[0].link
        for seed in (8, 9):
            await party.apply(world.commit_on(party.chain.head, seed))
        head = party.chain.head
        await party.restart()
        assert party.chain.head == head
        assert made[2].link.commit in party.chain.tree.nodes, "what was proven once is still known"


# --- starting from a downloaded state -----------------------------------------------------------------------------------------


async def test_a_downloaded_state_and_the_chain_up_to_it_become_ours_and_survive_a_restart(
    autojump_clock: Clock,
) -> None:
    async with _after(3) as (world, made, donor):
        newcomer, longer = world.parties[1], [*donor.chain.line.certificates, world.commits(4)[3].certificate]
        await newcomer.chain.start_from(donor.chain.state, longer)
        assert (newcomer.chain.head, newcomer.chain.root) == (made[2].link, donor.chain.root)
        await newcomer.restart()
        assert (newcomer.chain.head, newcomer.chain.root) == (made[2].link, donor.chain.root)
        following = world.commit_on(made[2].link, 3)
        await newcomer.apply(following)
        await donor.apply(following)
        assert newcomer.chain.root == donor.chain.root
        await newcomer.restart()
        assert newcomer.chain.root == donor.chain.root


async def test_updates_from_before_an_absence_are_gone_after_it(autojump_clock: Clock) -> None:
    async with open_world() as world:
        donor, absent = world.parties[:2]
        made = world.commits(3 * (KEPT_UPDATES + 4))
        for number, commit in enumerate(made):
            await donor.apply(commit)
            if number % (KEPT_UPDATES + 4) < KEPT_UPDATES:
                if absent.chain.head.index < number:
                    await absent.chain.start_from(donor.chain.state, donor.chain.line.certificates)
                else:
                    await absent.apply(commit)
        assert absent.chain.head.index > 2 * KEPT_UPDATES
        for _ in range(2):
            bases = {name.split("/")[1] for name in absent.disk.files if name.startswith("results/")}
            assert bases <= {link.commit.hex() for link in absent.chain.links[-KEPT_UPDATES - 1 :]}
            await absent.restart()


async def test_a_start_drops_updates_that_an_earlier_process_could_not(autojump_clock: Clock) -> None:
    async with _after(3) as (_, _, party):
        await party.chain.tools.log.write_result(CommitId(b"x" * 32), Root(b"y" * 32), b"left over")
        kept = {name for name in party.disk.files if name.startswith("results/") and (b"x" * 32).hex() not in name}
        await party.restart()
        assert {name for name in party.disk.files if name.startswith("results/")} == kept


async def test_a_state_that_the_certificates_do_not_lead_to_changes_nothing(autojump_clock: Clock) -> None:
    async with _after(2) as (world, made, donor):
        newcomer = world.parties[1]
        forged = Certificate(made[1].certificate.record, made[1].certificate.acks[:1])
        for chain in ([made[0].certificate], [made[0].certificate, forged], [made[1].certificate]):
            with pytest.raises(RemoteProtocolError):
                await newcomer.chain.start_from(donor.chain.state, chain)
        assert newcomer.chain.head.index == 0
        assert newcomer.disk.files == {}
        assert newcomer.disk.logs == {}


@pytest.mark.parametrize("moment_s", [0.007, 0.011, 0.015, 0.019, 0.022])
async def test_a_crash_while_a_downloaded_state_is_taken_over_keeps_the_state_before(
    moment_s: float, autojump_clock: Clock
) -> None:
    """The peer is far behind, and its old updates are gone: only its own generation leads to where it was."""
    async with open_world() as world:
        made = world.commits(KEPT_UPDATES + 6)
        donor, behind = world.parties[:2]
        for number, commit in enumerate(made):
            await donor.apply(commit)
            if number < KEPT_UPDATES + 2:
                await behind.apply(commit)
        before = behind.chain.head

        async def take_over() -> None:
            try:
                await behind.chain.start_from(donor.chain.state, donor.chain.line.certificates)
            except PotluckError:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_over)
            await trio.sleep(moment_s)
            behind.crash()
        behind.boot()
        await behind.chain.restore()
        assert behind.chain.head in (before, made[-1].link)
        for commit in made[behind.chain.head.index :]:
            await behind.apply(commit)
        assert behind.chain.root == donor.chain.root
        await behind.restart()
        assert behind.chain.root == donor.chain.root


# --- certificates on request, and what a commit does to the local parameters --------------------------------------------------


async def test_certificates_are_found_by_the_base_they_stand_on(autojump_clock: Clock) -> None:
    async with _after(2) as (world, made, party):
        chain = party.chain
        assert chain.line.on(world.genesis.head) == made[0].certificate
        assert chain.line.on(made[0].link.commit) == made[1].certificate
        assert chain.line.on(made[1].link.commit) is None
        assert list(chain.line.after([made[0].link.commit])) == [encode_certificate(made[1].certificate)]


# --- a state that the run does not attest ---------------------------------------------------------------------------------------


async def _grown(world: RoundWorld, party: Party, num_commits: int) -> list[MadeCommit]:
    """Commits of which each attests the state before it, and which this party applies."""
    made: list[MadeCommit] = []
    for seed in range(num_commits):
        parent = made[-1].link if made else world.start
        made.append(world.commit_on(parent, seed, attested_root=party.chain.root if made else None))
        await party.apply(made[-1])
    return made


def _damage(party: Party) -> None:
    """A value in memory is another one from now on."""
    anchor_N = party.chain.state.anchor_N.clone()
    anchor_N[7] += 1.0
    party.chain.held.stand_at(replace(party.chain.state, anchor_N=anchor_N))


@asynccontextmanager
async def _damaged_before_the_third() -> AsyncIterator[tuple[Party, Root, Root]]:
    """A party whose state was damaged before its third commit; the fourth, which shows it, is applied. The good roots of both."""
    async with open_world() as world:
        other, party = world.parties[1], world.parties[0]
        made = await _grown(world, other, 2)
        for commit in made:
            await party.apply(commit)
        assert party.chain.root == other.chain.root
        _damage(party)
        roots: list[Root] = []
        for seed in (2, 3):
            made.append(world.commit_on(made[-1].link, seed, attested_root=other.chain.root))
            await other.apply(made[-1])
            await party.apply(made[-1])
            roots.append(other.chain.root)
        yield party, roots[0], roots[1]


async def test_a_state_that_a_later_commit_does_not_attest_is_not_written_for_the_next_start(
    autojump_clock: Clock,
) -> None:
    async with _damaged_before_the_third() as (party, _, good_root):
        assert not party.chain.is_sound
        assert party.chain.became_unsound.is_set()
        assert party.chain.root != good_root
        assert not any(party.chain.head.commit.hex() in name for name in party.generation_names())
        await party.restart()
        assert party.chain.is_sound, "made again from what the run attests"
        assert party.chain.root == good_root


async def test_a_restart_from_a_state_that_nobody_could_check_finds_out_by_what_follows_from_it(
    autojump_clock: Clock,
) -> None:
    async with open_world() as world:
        party = world.parties[0]
        made = world.commits(2)  # neither of them attests the first
        for commit in made:
            await party.apply(commit)
        made.append(world.commit_on(made[-1].link, 2, attested_root=party.chain.root))
        await party.apply(made[-1])
        good_root = party.chain.root
        first = await state_at(party.chain, made[0].link.commit)
        assert first is not None
        for name in party.generation_names():
            del party.disk.files[name]
        wrong = replace(first, anchor_N=first.anchor_N + 1.0)
        await party.generations.write(wrong, state_root(wrong, GRID))
        await party.restart()
        assert (party.chain.head.index, party.chain.is_sound) == (3, False)
        assert party.chain.became_unsound.is_set()
        healed = await recomputed(party.chain)
        assert healed is not None
        await party.chain.replace_state(healed)
        assert (party.chain.is_sound, party.chain.root) == (True, good_root)


async def test_a_restart_on_good_states_is_sound_whether_replayed_or_read(autojump_clock: Clock) -> None:
    async with open_world() as world:
        party = world.parties[0]
        await _grown(world, party, 4)
        root = party.chain.root
        for kept in (2, 1, 0):
            for name in party.generation_names()[kept:]:
                del party.disk.files[name]
            await party.restart()
            assert (party.chain.is_sound, party.chain.root) == (True, root)


async def test_what_was_made_from_a_damaged_state_goes_when_it_is_healed(autojump_clock: Clock) -> None:
    async with _damaged_before_the_third() as (party, third_root, good_root):
        healed = await recomputed(party.chain)
        assert healed is not None
        assert state_root(healed, GRID) == third_root
        await party.chain.replace_state(healed)
        assert (party.chain.is_sound, party.chain.root) == (True, good_root)
        for ref in await party.generations.list():
            state, root = await party.generations.load(ref)
            expected = await state_at(party.chain, ref.commit)
            assert expected is not None
            assert root == state_root(state, GRID) == state_root(expected, GRID)
            assert ref.index != 3
        await party.restart()
        assert (party.chain.is_sound, party.chain.root) == (True, good_root)


async def test_a_rewind_on_the_head_moves_no_vector_and_the_next_commits_follow_it_after_a_restart_as_well(
    autojump_clock: Clock,
) -> None:
    async with open_world() as world:
        me, other = world.parties[:2]
        commits = await world.grow([me, other], 2)
        good = commits[-1].link
        certificate = seal_rewind(AUTHORITY, RUN_ID, good, Rewind(1, good.commit, 1))
        link = verify_certificate(certificate, good, verifier=VERIFIER, run_id=RUN_ID)
        before, root, loan = me.chain.state, me.chain.root, await lend(me.chain)
        for party in (me, other):
            await apply_whole(party.chain, link, certificate)
        assert me.chain.head == link
        assert me.chain.state.anchor_N is before.anchor_N
        assert (me.chain.state.head, me.chain.state.index) == (link.commit, good.index + 1)
        assert me.chain.root == other.chain.root != root
        lent_N = loan.state.anchor_N.clone()
        await me.restart()
        assert (me.chain.head, me.chain.root) == (link, other.chain.root)
        (after,) = await world.grow([me, other], 1)
        assert after.link.parent == link.commit
        assert me.chain.root == other.chain.root
        assert torch.equal(loan.state.anchor_N, lent_N), "whoever borrowed the vectors still reads them"
        loan.give_back()
