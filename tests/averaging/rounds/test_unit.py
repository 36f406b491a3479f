from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch
import trio
import trio.testing

from averaging.outer_step import apply_outer_step
from averaging.rounds.transfer import fetch_commits
from averaging.rounds.unit import KEPT_UPDATE_SNAPSHOTS, SNAPSHOT_BYTES_PER_VALUE, adoption_shift
from averaging.state import state_root
from averaging.unit_log import LoggedContribution
from protocol.errors import LocalProtocolError, PotluckError, RemoteProtocolError, StorageError
from protocol.ids import Root
from protocol.rounds.chain import verify_certificate
from protocol.rounds.messages import Ballot, Certificate
from protocol.wire import decode_certificate, encode_certificate
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
    certificates,
    open_world,
)

Clock = trio.testing.MockClock
KEPT_UPDATES = KEPT_UPDATE_SNAPSHOTS * SNAPSHOT_BYTES_PER_VALUE // 4
"""How many fp32 updates weigh as much as the snapshots that they are kept for."""


@asynccontextmanager
async def _after(num_commits: int) -> AsyncIterator[tuple[RoundWorld, list[MadeCommit], Party]]:
    """A party that applied some commits in order."""
    async with open_world() as world:
        made = world.commits(num_commits)
        for commit in made:
            await world.parties[0].apply(commit)
        yield world, made, world.parties[0]


def _generation_names(party: Party) -> list[str]:
    return sorted(name for name in party.disk.files if name.startswith("generations/"))


def _spoil(party: Party, name: str) -> None:
    data = bytearray(party.disk.files[name])
    data[-3] ^= 1
    party.disk.files[name] = bytes(data)


async def _restart(party: Party) -> None:
    party.crash()
    party.boot()
    await party.chain.restore()


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
            assert applied.root == party.chain.root == state_root(applied.state, GRID)


async def test_a_follower_that_applies_the_certificates_of_another_has_its_root(autojump_clock: Clock) -> None:
    async with _after(3) as (world, made, leader):
        leader.serve_fetches()
        follower = world.parties[1]
        raws = await fetch_commits(follower.network, leader.peer, UNIT, follower.chain.head.commit)
        for raw, commit in zip(raws, made, strict=True):
            certificate = decode_certificate(raw)
            link = verify_certificate(certificate, follower.chain.head, verifier=VERIFIER, run_id=RUN_ID)
            await commit.write_results(follower)
            await follower.chain.apply(link, certificate)
        assert follower.chain.root == leader.chain.root != Root(bytes(32))
        assert follower.chain.certificates == leader.chain.certificates


async def test_another_update_makes_another_root(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        await party.apply(world.commit_on(party.chain.head, 1))
        await world.parties[1].apply(world.commit_on(world.parties[1].chain.head, 2))
        assert party.chain.root != world.parties[1].chain.root


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


async def test_results_of_failed_attempts_go_when_the_commit_is_applied(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        commit = world.commit_on(party.chain.head, 1)
        await party.log.write_result(commit.record.parent, Root(b"l" * 32), b"leftover")
        await party.apply(commit)
        assert len(await party.log.list_results(commit.record.parent)) == len(commit.record.slices)


# --- restarting ---------------------------------------------------------------------------------------------------------------


async def test_a_restart_comes_back_to_the_same_head_and_root(autojump_clock: Clock) -> None:
    async with _after(3) as (world, made, party):
        root, raws = party.chain.root, list(party.chain.certificates)
        await _restart(party)
        assert (party.chain.head, party.chain.root) == (made[2].link, root)
        assert party.chain.certificates == raws
        following = world.commit_on(made[2].link, 3)
        await party.apply(following)
        for commit in (*made, following):
            await world.parties[1].apply(commit)
        assert party.chain.root == world.parties[1].chain.root


async def test_the_log_replays_what_the_newest_generation_lacks(autojump_clock: Clock) -> None:
    """As after a crash between a certificate and its generation."""
    async with _after(3) as (_, made, party):
        root = party.chain.root
        del party.disk.files[_generation_names(party)[-1]]
        await _restart(party)
        assert (party.chain.head, party.chain.root) == (made[2].link, root)


@pytest.mark.parametrize("num_spoilt", [1, 2])
async def test_damaged_generations_are_passed_over_and_the_log_leads_to_the_same_root(
    num_spoilt: int, autojump_clock: Clock
) -> None:
    async with _after(4) as (_, made, party):
        root = party.chain.root
        names = _generation_names(party)
        assert len(names) == 2
        for name in names[-num_spoilt:]:
            _spoil(party, name)
        await _restart(party)
        assert (party.chain.head, party.chain.root) == (made[3].link, root)


async def test_a_crash_between_the_certificate_and_the_state_loses_nothing(autojump_clock: Clock) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party)
        await party.log.log_certificate(made[0].link.commit, encode_certificate(commit.certificate))
        await _restart(party)
        assert party.chain.head == commit.link


@pytest.mark.parametrize("moment_s", [0.001, 0.005, 0.009, 0.013, 0.017, 0.025])
async def test_a_crash_at_any_moment_of_applying_is_made_good_by_applying_again(
    moment_s: float, autojump_clock: Clock
) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)

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
        assert party.chain.head in (made[0].link, commit.link)
        if party.chain.head == made[0].link:
            await party.apply(commit)
        await world.parties[1].apply(made[0])
        await world.parties[1].apply(commit)
        assert party.chain.root == world.parties[1].chain.root


async def test_bytes_damaged_on_disk_are_not_replayed_but_wanted_again(autojump_clock: Clock) -> None:
    async with _after(3) as (_, made, party):
        root = party.chain.root
        for name in _generation_names(party):
            _spoil(party, name)
        damaged = made[1].record
        _spoil(party, f"results/{damaged.parent.hex()}/{damaged.slices[1].result_hash.hex()}")
        await _restart(party)
        assert party.chain.head == made[0].link
        assert not await party.log.holds_results(damaged.parent, [damaged.slices[1].result_hash])
        for commit in made[1:]:
            await party.apply(commit)
        assert party.chain.root == root
        await _restart(party)
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


async def test_a_crash_between_an_ack_and_its_bytes_makes_the_ack_void_and_keeps_the_promise(
    autojump_clock: Clock,
) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5)
        await commit.write_results(party, slices=[0])

        async def write_the_rest() -> None:
            with pytest.raises(StorageError):
                await commit.write_results(party, slices=[1])

        ballot = await _ack(party, commit)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_the_rest)
            await trio.sleep(0.001)
            party.crash()
        party.boot()
        opened = await party.chain.restore()
        assert opened.acked is None
        assert opened.promised == ballot
        assert party.chain.head == made[0].link


async def test_a_contribution_made_before_a_restart_is_known_but_not_at_hand(autojump_clock: Clock) -> None:
    async with _after(1) as (_, made, party):
        await party.chain.log_contribution(made[0].link.commit, LoggedContribution(Root(b"c" * 32), 700, 9))
        party.boot()
        opened = await party.chain.restore()
        assert opened.contribution is not None
        assert (opened.contribution.root, opened.contribution.tokens) == (Root(b"c" * 32), 700)
        assert not opened.contribution_is_possible


async def test_what_was_promised_on_an_older_base_does_not_bind_the_open_one(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        commit = world.commit_on(party.chain.head, 1)
        await _ack(party, commit)
        await party.apply(commit)
        party.boot()
        opened = await party.chain.restore()
        assert (opened.promised, opened.acked, opened.contribution) == (None, None, None)


async def test_data_goes_on_after_the_last_step_that_a_commit_counted(autojump_clock: Clock) -> None:
    async with _after(0) as (world, _, party):
        roots = [Root(bytes([n]) * 32) for n in range(1, 4)]
        await party.chain.log_contribution(party.chain.head.commit, LoggedContribution(roots[0], 100, 7))
        first = world.commit_on(party.chain.head, 1, roots=roots)
        await party.apply(first)
        # the second commit counts another contribution than the one that this peer logged
        await party.chain.log_contribution(first.link.commit, LoggedContribution(Root(b"x" * 32), 100, 15))
        await party.apply(world.commit_on(first.link, 2, roots=roots))
        assert party.chain.data_position(party.peer) == 7
        await _restart(party)
        assert party.chain.data_position(party.peer) == 7
        assert party.chain.data_position(world.stranger.peer) == 0


# --- pruning ------------------------------------------------------------------------------------------------------------------


async def test_pruning_bounds_the_updates_and_keeps_what_a_replay_needs(autojump_clock: Clock) -> None:
    async with _after(KEPT_UPDATES + 4) as (_, made, party):
        held = [
            commit
            for commit in made
            if await party.log.holds_results(commit.record.parent, [s.result_hash for s in commit.record.slices])
        ]
        assert held == made[-KEPT_UPDATES:]
        assert len(_generation_names(party)) == 2
        root = party.chain.root
        _spoil(party, _generation_names(party)[-1])
        await _restart(party)
        assert (party.chain.head, party.chain.root) == (made[-1].link, root)


async def test_without_any_good_generation_a_pruned_chain_starts_over_and_says_where_it_is(
    autojump_clock: Clock,
) -> None:
    async with _after(KEPT_UPDATES + 1) as (world, _, party):
        for name in _generation_names(party):
            _spoil(party, name)
        await _restart(party)
        assert party.chain.head.commit == world.genesis.head
        assert party.chain.certificates == []
        assert party.chain.root == state_root(world.genesis, GRID)


# --- starting from a downloaded state -----------------------------------------------------------------------------------------


async def test_a_downloaded_state_becomes_ours_and_survives_a_restart(autojump_clock: Clock) -> None:
    async with _after(3) as (world, made, donor):
        newcomer = world.parties[1]
        await newcomer.chain.start_from(donor.chain.state, certificates(donor.chain.certificates))
        assert (newcomer.chain.head, newcomer.chain.root) == (made[2].link, donor.chain.root)
        await _restart(newcomer)
        assert (newcomer.chain.head, newcomer.chain.root) == (made[2].link, donor.chain.root)
        following = world.commit_on(made[2].link, 3)
        await newcomer.apply(following)
        await donor.apply(following)
        assert newcomer.chain.root == donor.chain.root
        await _restart(newcomer)
        assert newcomer.chain.root == donor.chain.root


async def test_a_state_in_the_middle_of_the_chain_takes_the_chain_up_to_it(autojump_clock: Clock) -> None:
    async with _after(2) as (world, made, donor):
        state, newcomer = donor.chain.state, world.parties[1]
        await donor.apply(world.commit_on(made[1].link, 3))
        await newcomer.chain.start_from(state, certificates(donor.chain.certificates))
        assert newcomer.chain.head == made[1].link


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
                await behind.chain.start_from(donor.chain.state, certificates(donor.chain.certificates))
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
        await _restart(behind)
        assert behind.chain.root == donor.chain.root


# --- certificates on request, and what a commit does to the local parameters --------------------------------------------------


async def test_certificates_are_found_by_the_base_they_stand_on(autojump_clock: Clock) -> None:
    async with _after(2) as (world, made, party):
        chain = party.chain
        assert chain.certificate_on(world.genesis.head) == encode_certificate(made[0].certificate)
        assert chain.certificate_on(made[0].link.commit) == encode_certificate(made[1].certificate)
        assert chain.certificate_on(made[1].link.commit) is None
        assert list(chain.certificates_after(made[0].link.commit)) == [encode_certificate(made[1].certificate)]


async def test_counted_chunks_keep_only_the_work_since_the_snapshot_and_the_rest_keeps_all(
    autojump_clock: Clock,
) -> None:
    async with _after(1) as (world, made, party):
        commit = world.commit_on(made[0].link, 5, omitted_from_last_slice=[0])
        theta_N = torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(8))
        applied = await party.apply(commit)
        new_N, old_N = applied.state.anchor_N, applied.previous_anchor_N
        shift_N = adoption_shift(applied, commit.record, party.peer, theta_N, GRID)
        torch.testing.assert_close(shift_N[:40], new_N[:40] - theta_N[:40], rtol=0, atol=0)
        torch.testing.assert_close(shift_N[40:], new_N[40:] - old_N[40:], rtol=0, atol=0)
        other_N = adoption_shift(applied, commit.record, party.peer, None, GRID)
        torch.testing.assert_close(other_N, new_N - old_N, rtol=0, atol=0)
        stranger_N = adoption_shift(applied, commit.record, world.stranger.peer, theta_N, GRID)
        torch.testing.assert_close(stranger_N, new_N - old_N, rtol=0, atol=0)
