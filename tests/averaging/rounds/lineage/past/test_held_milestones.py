from __future__ import annotations

import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.lineage.past.followed_line import FollowedLine
from protocol.ids import CommitId, RunId
from protocol.rounds.lineage.milestones import seal_milestone
from protocol.rounds.messages.start import Milestone
from tests.averaging.rounds.round_world import HOST, UNIT, MadeCommit, RoundWorld, open_world

Clock = trio.testing.MockClock


def _at(made: list[MadeCommit], index: int) -> CommitId | None:
    return made[index - 1].link.commit if 0 < index <= len(made) else None


def _indices(world: RoundWorld, sealed: tuple[bytes, ...]) -> list[int]:
    held = world.milestones()
    return [held.opened(each).link.index for each in sealed]


async def test_milestones_are_kept_in_order_however_they_come(autojump_clock: Clock) -> None:
    async with open_world() as world:
        made, held = world.commits(4), world.milestones()
        held.take([world.milestone_at(made[2]), world.milestone_at(made[0])], "the host")
        held.take([world.milestone_at(made[2])], "the host")
        assert _indices(world, held.sealed) == [1, 3]
        assert _indices(world, held.newest()) == [3]
        again = world.milestones()
        again.take(held.sealed, "the disk")
        assert again.sealed == held.sealed


async def test_a_milestone_that_may_not_be_is_named_once_and_loses_nothing(autojump_clock: Clock) -> None:
    async with open_world() as world:
        made, held = world.commits(4), world.milestones()
        other = world.commit_on(made[0].link, 99)
        good = world.milestone_at(made[2])
        held.lines[UNIT] = lambda index: _at(made, index)
        held.take([good], "the host")
        foreign = seal_milestone(
            HOST,
            RunId(bytes(32)),
            Milestone(world.start.commit, made[3].certificate.record, world.parties[0].chain.root),
        )
        bad = {
            "host signed": world.milestone_at(made[3], world.parties[0].signer),
            "of run": foreign,
            "older": world.milestone_at(made[1]),
            "our certificates": world.milestone_at(other),
            "an envelope": b"junk",
        }
        for words, sealed in bad.items():
            with capture_logs() as logs:
                held.take([sealed, sealed], "the host")
            (line,) = logs
            assert line["event"] == "milestone_refused"
            assert words in line["reason"]
            assert held.sealed == (good,)


async def test_a_milestone_that_the_lineage_comes_to_contradict_is_named_and_forgotten(autojump_clock: Clock) -> None:
    async with open_world() as world:
        made, held = world.commits(3), world.milestones()
        other = world.commit_on(made[1].link, 99)
        held.take([world.milestone_at(made[0]), world.milestone_at(other)], "the host")
        assert _indices(world, held.sealed) == [1, 3], "round 3 is not here yet"
        line = FollowedLine([world.start], [])
        for commit in made[:2]:
            line.append(commit.link, commit.certificate)
        held.settle(line)
        assert _indices(world, held.sealed) == [1, 3], "the head has not come there"
        line.append(made[2].link, made[2].certificate)
        with capture_logs() as logs:
            held.settle(line)
        assert [line["event"] for line in logs] == ["milestone_contradicts"]
        assert _indices(world, held.sealed) == [1]
        line.begin_at(2)
        held.settle(line)
        assert held.sealed == (), "the lineage begins after it"
