from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import torch
import trio.testing

from averaging.rounds.lineage.earlier_states import state_at
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpoints import CheckpointContent, write_checkpoint
from coordinator.checkpoints.state_fetcher import Replayer, StateFetcher
from coordinator.ledger.ledger import CheckpointRow
from coordinator.progress.tracker import RunTracker
from protocol.errors import UnreachableError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.requests import FetchResult, FetchState
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec
from tests.averaging.rounds.round_world import CODEC, GRID, UNIT, MadeCommit, RoundWorld, open_world
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
SCHEMA = TensorSchema(UNIT, (TensorSpec("values", (GRID.num_elements,)),))


@dataclass
class FollowedRun:
    """The commits that a host follows, and its checkpoints."""

    links: Sequence[ChainLink]
    checkpoints: list[CheckpointRow] = field(default_factory=list)

    @property
    def chain(self) -> FollowedRun:
        return self

    def behind(self, commit: CommitId) -> Iterator[tuple[CommitId, int]]:
        place = next(link.index for link in self.links if link.commit == commit)
        for link in reversed(self.links[: place + 1]):
            yield link.commit, link.index

    def link(self, commit: CommitId) -> ChainLink | None:
        return next((link for link in self.links if link.commit == commit), None)

    def addresses_of(self, peers: Sequence[PeerId]) -> Sequence[str]:
        return ()


@dataclass
class Scene:
    """A host, which is the third party, and two donors that applied all commits."""

    world: RoundWorld
    made: list[MadeCommit]
    run: FollowedRun
    folder: Path
    has_replay: bool = True

    async def fetch(self, root: Root | None = None) -> UnitState:
        host, donors, link = self.world.parties[2], self.world.parties[:2], self.made[-1].link
        tracker = cast("RunTracker", self.run)

        def first() -> UnitState:
            genesis = self.world.genesis
            return UnitState(UNIT, genesis.head, 0, 0, genesis.anchor_N.clone(), genesis.momentum_N.clone())

        replayer = Replayer(host.network, tracker, InlineOffload(), self.folder, SCHEMA, GRID, CODEC, first)
        fetcher = StateFetcher(host.network, tracker, InlineOffload(), replayer if self.has_replay else None)
        root = root or donors[0].chain.root
        return await fetcher.fetch([donor.peer for donor in donors], UNIT, GRID, link.commit, root)

    def asked(self, kind: type) -> int:
        return sum(isinstance(request, kind) for party in self.world.parties for _, request in party.asked)

    async def keep_checkpoint(self, commit: MadeCommit) -> None:
        state = await state_at(self.world.parties[0].chain, commit.link.commit)
        assert state is not None
        content = CheckpointContent("run", "00" * 32, SCHEMA, GRID, {}, state, state_root(state, GRID))
        self.run.checkpoints.append(write_checkpoint(self.folder, content, now_unix_s=1))


@asynccontextmanager
async def _scene(tmp_path: Path, num_commits: int) -> AsyncIterator[Scene]:
    async with open_world() as world:
        made = world.commits(num_commits)
        for party in world.parties[:2]:
            for commit in made:
                await party.apply(commit)
            party.serve_fetches()
        yield Scene(world, made, FollowedRun([world.start, *(commit.link for commit in made)]), tmp_path)


def _is_same(one: UnitState, other: UnitState) -> bool:
    return one.header == other.header and all(map(torch.equal, one.vectors, other.vectors))


@pytest.mark.parametrize("num_commits", [1, 2])
async def test_the_state_a_few_rounds_after_the_start_is_made_of_results_alone(
    num_commits: int, tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _scene(tmp_path, num_commits) as scene:
        assert _is_same(await scene.fetch(), scene.world.parties[0].chain.state)
        assert scene.asked(FetchResult) == 2 * num_commits
        assert scene.asked(FetchState) == 0
        assert all(party.asked for party in scene.world.parties[:2]), "each donor sends its share"


async def test_the_state_a_few_rounds_after_a_checkpoint_is_made_of_it_and_results(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _scene(tmp_path, 6) as scene:
        await scene.keep_checkpoint(scene.made[1])
        await scene.keep_checkpoint(scene.made[4])
        assert _is_same(await scene.fetch(), scene.world.parties[0].chain.state)
        assert (scene.asked(FetchResult), scene.asked(FetchState)) == (2, 0)


async def test_where_a_state_is_fewer_bytes_than_the_results_it_is_fetched(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _scene(tmp_path, 6) as scene:
        await scene.keep_checkpoint(scene.made[1])
        assert _is_same(await scene.fetch(), scene.world.parties[0].chain.state)
        assert scene.asked(FetchResult) == 0
        assert scene.asked(FetchState) > 0


async def test_a_result_that_one_donor_lacks_comes_from_another_and_a_whole_state_where_both_do(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with _scene(tmp_path, 2) as scene:
        results = [[name for name in party.disk.files if "results/" in name] for party in scene.world.parties[:2]]
        for name in results[0]:
            del scene.world.parties[0].disk.files[name]
        assert _is_same(await scene.fetch(), scene.world.parties[0].chain.state)
        assert scene.asked(FetchState) == 0
        for name in results[1]:
            del scene.world.parties[1].disk.files[name]
        assert _is_same(await scene.fetch(), scene.world.parties[0].chain.state)
        assert scene.asked(FetchState) > 0


async def test_a_replay_with_another_root_is_not_taken(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _scene(tmp_path, 1) as scene:
        with pytest.raises(UnreachableError):
            await scene.fetch(Root(b"r" * 32))
        assert scene.asked(FetchState) > 0, "donors may know better"


async def test_a_unit_among_others_is_always_fetched_whole(tmp_path: Path, autojump_clock: Clock) -> None:
    async with _scene(tmp_path, 1) as scene:
        scene.has_replay = False
        assert _is_same(await scene.fetch(), scene.world.parties[0].chain.state)
        assert scene.asked(FetchResult) == 0
