"""Tests of averaging/rounds/lineage/unit_log_view.py.

A process that starts knows the side of a fork that was left before.
"""

from __future__ import annotations

import pytest
import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.lineage.earlier_states import state_at
from averaging.state.log_entries import LOG_NAME
from averaging.state.unit_log import LogLimits, UnitLog
from averaging.storage.memory_storage import MemoryStorage
from protocol.rounds.lineage.lineage import best_head
from tests.averaging.rounds.round_world import MadeCommit, Party, RoundWorld, open_world, tree_nodes

Clock = trio.testing.MockClock
EAGER = LogLimits(growth=1, slack_bytes=0)
"""Written anew at every chance."""


class _Fork:
    """A commit that all have, one party's lone commits on it, and what the two others did meanwhile: it went over to theirs."""

    def __init__(self, world: RoundWorld) -> None:
        self.party = world.parties[0]
        self.shared = world.commits(1)[0]
        self.ours = [world.commit_on(self.shared.link, 5, members=[0], is_lone=True)]
        self.ours.append(world.commit_on(self.ours[0].link, 6, members=[0], is_lone=True))
        self.theirs = [world.commit_on(self.shared.link, 7, members=[1, 2])]
        self.theirs.append(world.commit_on(self.theirs[0].link, 8, members=[1, 2]))

    async def live(self) -> None:
        for commit in (self.shared, *self.ours):
            await self.party.apply(commit)
        for commit in self.theirs:
            await commit.write_results(self.party)
        state = await state_at(self.party.chain, self.shared.link.commit)
        assert state is not None
        path = tree_nodes(self.theirs)
        end = await self.party.chain.replay(state, path, is_own=False)
        await self.party.chain.switch(await self.party.chain.prepared(self.shared.link.commit, path, state, end))


def _knows(party: Party, commits: list[MadeCommit]) -> list[bool]:
    return [commit.link.commit in party.chain.tree.nodes for commit in commits]


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_the_side_that_was_left_is_in_the_tree_after_every_restart_and_the_other_is_followed(
    is_compacted: bool, autojump_clock: Clock
) -> None:
    async with open_world() as world:
        fork = _Fork(world)
        await fork.live()
        for _ in range(3):
            if is_compacted:
                await UnitLog(MemoryStorage(fork.party.disk), EAGER).compact(())
            await fork.party.restart()
            chain = fork.party.chain
            assert _knows(fork.party, fork.ours) == [True, True]
            assert (chain.head, chain.tree.tip, best_head(chain.tree)) == (
                fork.theirs[1].link,
                fork.theirs[1].link.commit,
                fork.theirs[1].link.commit,
            )
            node = chain.tree.nodes[fork.ours[1].link.commit]
            assert (node.link, node.certificate) == (fork.ours[1].link, fork.ours[1].certificate)
        following = world.commit_on(fork.theirs[1].link, 9)
        await fork.party.apply(following)
        assert fork.party.chain.head == following.link


async def test_one_that_is_damaged_or_proves_nothing_is_dropped_with_what_follows_it_and_said_once(
    autojump_clock: Clock,
) -> None:
    for spoilt in (b"\xff\xff no certificate", b"unsigned"):
        async with open_world() as world:
            fork = _Fork(world)
            await fork.live()
            await fork.party.log.compact(())
            entries = fork.party.disk.logs[LOG_NAME]
            place = next(place for place, entry in enumerate(entries) if entry[:1] == b"D")
            entry = entries[place]
            entries[place] = entry[:-1] + bytes([entry[-1] ^ 1]) if spoilt == b"unsigned" else entry[:33] + spoilt
            with capture_logs() as reported:
                await fork.party.restart()
            assert [(e["event"], e["num_commits"]) for e in reported if e["log_level"] == "warning"] == [
                ("left_commits_dropped", 2)
            ]
            assert _knows(fork.party, fork.ours) == [False, False]
            assert fork.party.chain.head == fork.theirs[1].link


async def test_a_start_from_a_downloaded_state_still_knows_the_side_that_was_left(autojump_clock: Clock) -> None:
    async with open_world() as world:
        fork, donor = _Fork(world), world.parties[1]
        await fork.live()
        following = world.commit_on(fork.theirs[1].link, 9)
        for commit in (fork.shared, *fork.theirs, following):
            await donor.apply(commit)
        await fork.party.restart()
        await fork.party.chain.start_from(donor.chain.state, donor.chain.line.certificates)
        assert _knows(fork.party, [*fork.ours, following]) == [True, True, True]
        assert best_head(fork.party.chain.tree) == fork.party.chain.head.commit == following.link.commit
        await fork.party.restart()
        assert _knows(fork.party, fork.ours) == [True, True]
