from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch
import trio.testing

from averaging.outer_step import apply_outer_step
from averaging.rounds.updates import Updates
from averaging.state import state_root
from protocol.errors import LocalProtocolError
from tests.averaging.rounds.round_world import CODEC, GRID, OUTER, MadeCommit, Party, RoundWorld, open_world

Clock = trio.testing.MockClock


@asynccontextmanager
async def _updates() -> AsyncIterator[tuple[RoundWorld, Party, MadeCommit, Updates]]:
    """(world, party, a commit of two slices that is not on its disk, the updates of its unit)."""
    async with open_world() as world:
        party = world.parties[0]
        yield world, party, world.commits(1)[0], Updates(party.chain.tools)


def _name(commit: MadeCommit, number: int) -> str:
    return f"results/{commit.record.parent.hex()}/{commit.record.slices[number].result_hash.hex()}"


async def test_results_are_read_slice_by_slice_in_the_order_of_the_record(autojump_clock: Clock) -> None:
    async with _updates() as (_, party, commit, updates):
        await commit.write_results(party)
        assert await updates.read(commit.link) == list(commit.results)
        assert await updates.read_good(commit.link) == list(commit.results)


@pytest.mark.parametrize("here", [[], [0], [1]])
async def test_where_a_slice_is_missing_nothing_is_read_and_nothing_deleted(
    here: list[int], autojump_clock: Clock
) -> None:
    async with _updates() as (_, party, commit, updates):
        await commit.write_results(party, here)
        assert await updates.read(commit.link) is None
        assert await updates.read_good(commit.link) is None
        assert [number for number in (0, 1) if _name(commit, number) in party.disk.files] == here


async def test_the_start_of_the_run_has_no_results(autojump_clock: Clock) -> None:
    async with _updates() as (world, _, _, updates):
        assert await updates.read(world.start) is None
        assert await updates.read_good(world.start) is None


@pytest.mark.parametrize("damage", ["a bit", "the end", "everything"])
async def test_a_damaged_slice_is_deleted_and_the_good_one_is_kept(damage: str, autojump_clock: Clock) -> None:
    async with _updates() as (_, party, commit, updates):
        await commit.write_results(party)
        if damage == "a bit":
            party.spoil(_name(commit, 1))
        else:
            party.disk.files[_name(commit, 1)] = commit.results[1][:-4] if damage == "the end" else b""
        assert await updates.read_good(commit.link) is None
        assert [number for number in (0, 1) if _name(commit, number) in party.disk.files] == [0]
        await commit.write_results(party, [1])
        assert await updates.read_good(commit.link) == list(commit.results)


async def test_a_state_advances_by_one_outer_step_of_the_decoded_update(autojump_clock: Clock) -> None:
    async with _updates() as (world, _, commit, updates):
        state = await updates.advance(world.genesis, commit.link, commit.results)
        update_N = CODEC.decode(b"".join(commit.results), GRID.num_elements)
        anchor_N, momentum_N = apply_outer_step(world.genesis.anchor_N, world.genesis.momentum_N, update_N, OUTER)
        torch.testing.assert_close(state.anchor_N, anchor_N, rtol=0, atol=0)
        torch.testing.assert_close(state.momentum_N, momentum_N, rtol=0, atol=0)
        assert (state.head, state.index, state.total_tokens) == (commit.link.commit, 1, commit.link.total_tokens)
        assert state.unit == world.genesis.unit
        assert await updates.root(state) == state_root(state, GRID)


async def test_advancing_leaves_the_state_before_as_it_was(autojump_clock: Clock) -> None:
    async with _updates() as (world, _, commit, updates):
        before = state_root(world.genesis, GRID)
        await updates.advance(world.genesis, commit.link, commit.results)
        assert state_root(world.genesis, GRID) == before


async def test_nothing_advances_to_the_start_of_the_run(autojump_clock: Clock) -> None:
    async with _updates() as (world, _, _, updates):
        with pytest.raises(LocalProtocolError, match="without a record"):
            await updates.advance(world.genesis, world.start, [])
