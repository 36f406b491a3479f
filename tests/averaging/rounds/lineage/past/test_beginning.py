from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.lineage.past.beginning import first_link
from averaging.state.log_entries import LOG_NAME, LoggedContribution, LoggedMilestone
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import Root
from protocol.rounds.lineage import lineage
from protocol.rounds.messages.record import Ballot
from tests.averaging.rounds.round_world import HOST, MadeCommit, Party, RoundWorld, apply_whole, open_world, raws_of
from tests.simulation.signing import HashSigner

Clock = trio.testing.MockClock
DEPTH = 4


@pytest.fixture(autouse=True)
def _shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "MAX_DEPTH", DEPTH)


@asynccontextmanager
async def _after(num_commits: int, *, milestone: int = 3) -> AsyncIterator[tuple[RoundWorld, list[MadeCommit], Party]]:
    """A party that has the milestone of this round, and applied some commits after it came."""
    async with open_world() as world:
        made, party = world.commits(num_commits), world.parties[0]
        for commit in made[:milestone]:
            await party.apply(commit)
        party.milestones.take([world.milestone_at(made[milestone - 1])], "the host")
        for commit in made[milestone:]:
            await party.apply(commit)
        yield world, made, party


async def test_all_before_a_milestone_leaves_memory_and_disk_once_it_lies_deep_enough(autojump_clock: Clock) -> None:
    async with _after(2 + DEPTH) as (world, made, party):
        assert party.chain.line.root.index == 0, "the milestone of round 3 is not deep enough yet"
        await party.apply(world.commit_on(made[-1].link, 90))
        chain = party.chain
        assert chain.line.root == made[2].link
        assert [link.index for link in chain.links] == [3, 4, 5, 6, 7]
        assert len(raws_of(chain)) == 4
        logged = await party.log.load()
        assert logged.begins is not None
        assert (logged.begins.commit, len(logged.certificates)) == (made[2].link.commit, 4)
        written = b"".join(party.disk.logs[LOG_NAME])
        assert made[1].certificate.record not in written, "the log was rewritten"
        assert made[3].certificate.record in written


async def test_a_chain_that_begins_at_a_milestone_comes_back_and_goes_on_like_any_other(autojump_clock: Clock) -> None:
    async with _after(3 + DEPTH) as (world, made, party):
        links, root, raws = list(party.chain.links), party.chain.root, raws_of(party.chain)
        await party.restart()
        chain = party.chain
        assert (chain.links, chain.root, raws_of(chain)) == (links, root, raws)
        assert chain.tree.root == made[2].link.commit
        party.milestones.take([world.milestone_at(made[5])], "the host")
        parent = made[-1].link
        for seed in range(3):
            following = world.commit_on(parent, 50 + seed)
            await following.write_results(party)
            await apply_whole(chain, following.link, following.certificate)
            parent = following.link
        assert chain.line.root == made[5].link
        assert chain.root != root


async def test_without_a_milestone_nothing_is_forgotten(autojump_clock: Clock) -> None:
    async with open_world() as world:
        for commit in world.commits(3 * DEPTH):
            await world.parties[0].apply(commit)
        assert len(world.parties[0].chain.links) == 3 * DEPTH + 1


async def test_a_milestone_that_is_not_on_our_lineage_forgets_nothing(autojump_clock: Clock) -> None:
    async with open_world() as world:
        made, party = world.commits(3 + DEPTH), world.parties[0]
        other = world.commit_on(made[1].link, 99)
        party.milestones.take([world.milestone_at(other)], "the host")
        with capture_logs() as logs:
            for commit in made:
                await party.apply(commit)
        assert [line["event"] for line in logs if "milestone" in line["event"]] == ["milestone_contradicts"]
        assert party.chain.line.root.index == 0


async def test_votes_and_steps_of_forgotten_rounds_go_and_no_step_is_taken_twice(autojump_clock: Clock) -> None:
    async with open_world() as world:
        made, party = world.commits(4 + DEPTH), world.parties[0]
        for number, commit in enumerate(made):
            base, ballot = commit.record.parent, Ballot(0, party.peer)
            root = commit.record.contributors[0].root if number < 2 else Root(bytes([number]) * 32)
            await party.chain.log_contribution(base, LoggedContribution(root, 1, 10 * (number + 1)))
            await party.log.log_ack(base, ballot, commit.certificate.record)
            if number == 3:
                party.milestones.take([world.milestone_at(made[3])], "the host")
            await party.apply(commit)
        for _ in range(2):
            bases = (await party.log.load()).bases
            assert set(bases) == {commit.record.parent for commit in made[4:]}
            assert party.chain.data_position() == 20
            await party.restart()


async def test_a_full_disk_keeps_the_old_beginning_until_the_next_commit(autojump_clock: Clock) -> None:
    async with _after(2 + DEPTH) as (world, made, party):
        real, party.log.log_milestone = party.log.log_milestone, _refuse  # type: ignore[method-assign]
        following = world.commit_on(made[-1].link, 90)
        with capture_logs() as logs:
            await party.apply(following)
        assert "milestone_not_logged" in [line["event"] for line in logs]
        assert party.chain.line.root.index == 0
        party.log.log_milestone = real  # type: ignore[method-assign]
        await party.apply(world.commit_on(following.link, 91))
        assert party.chain.line.root.index == 3


async def _refuse(_begins: LoggedMilestone) -> None:
    raise StorageError("the disk is full", "space")


async def test_a_log_that_begins_at_what_the_host_did_not_sign_is_refused(autojump_clock: Clock) -> None:
    async with open_world() as world:
        made, genesis, held = world.commits(2), world.start, world.milestones()
        commit = made[1].link.commit
        good = LoggedMilestone(commit, world.milestone_at(made[1]), 0)
        assert first_link(held, genesis, None) == genesis
        assert first_link(held, genesis, good) == made[1].link
        forged = LoggedMilestone(commit, world.milestone_at(made[1], HashSigner(b"liar")), 0)
        other = LoggedMilestone(made[0].link.commit, world.milestone_at(made[1], HOST), 0)
        for bad, words in ((forged, "host signed"), (other, made[0].link.commit[:4].hex())):
            with pytest.raises(StorageError, match=words):
                first_link(held, genesis, bad)
        with pytest.raises(StorageError, match="from the run's start"):
            first_link(None, genesis, good)


# --- a peer that begins there -------------------------------------------------------------------------------------------------


async def test_a_newcomer_begins_at_a_milestone_and_has_the_root_of_the_others(autojump_clock: Clock) -> None:
    async with _after(6) as (world, made, donor):
        newcomer = world.parties[1]
        sealed = world.milestone_at(made[2])
        milestone = newcomer.milestones.opened(sealed)
        proofs = donor.chain.line.certificates[3:]
        await newcomer.chain.start_from(donor.chain.state, proofs, milestone)
        assert (newcomer.chain.line.root, newcomer.chain.head) == (made[2].link, made[5].link)
        assert newcomer.chain.root == donor.chain.root
        following = world.commit_on(made[5].link, 70)
        for party in (donor, newcomer):
            await party.apply(following)
        assert newcomer.chain.root == donor.chain.root
        await newcomer.restart()
        assert (newcomer.chain.head, newcomer.chain.root) == (following.link, donor.chain.root)


async def test_certificates_that_do_not_follow_the_milestone_or_prove_too_little_begin_nothing(
    autojump_clock: Clock,
) -> None:
    async with _after(6) as (world, made, donor):
        newcomer = world.parties[1]
        milestone = newcomer.milestones.opened(world.milestone_at(made[2]))
        for proofs in (donor.chain.line.certificates[2:], donor.chain.line.certificates[3:4], ()):
            with pytest.raises(RemoteProtocolError):
                await newcomer.chain.start_from(donor.chain.state, proofs, milestone)
        assert newcomer.chain.head == world.start
        assert LOG_NAME not in newcomer.disk.logs


async def test_where_no_good_state_is_left_after_a_milestone_ours_is_of_no_use_until_one_comes(
    autojump_clock: Clock,
) -> None:
    async with _after(3 + DEPTH) as (world, made, party):
        for name in party.generation_names():
            party.spoil(name)
        await party.restart()
        chain = party.chain
        assert (chain.head, chain.lacks_state, chain.is_sound) == (made[-1].link, True, False)
        assert chain.line.root == made[2].link
        donor = world.parties[1]
        for commit in made:
            await donor.apply(commit)
        await chain.replace_state(donor.chain.state)
        assert (chain.lacks_state, chain.is_sound, chain.root) == (False, True, donor.chain.root)
