from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
import torch
import trio
import trio.testing

import averaging.state.state
from averaging.rounds.lineage.next_state import SliceBytes
from averaging.rounds.lineage.updates import THREADS_WITHIN_S, Updates
from averaging.state.state import UnitState, state_root
from protocol.errors import LocalProtocolError
from protocol.merkle import leaf_hash
from tests.at_once import apply_outer_step
from tests.averaging.rounds.counting_codec import CountingCodec
from tests.averaging.rounds.round_world import (
    CHUNK_BYTES,
    CODEC,
    GRID,
    OUTER,
    MadeCommit,
    Party,
    RoundWorld,
    open_world,
)

Clock = trio.testing.MockClock
T = TypeVar("T")


class BlockingOffload:
    """Runs functions at once, or when `go` says so: as a thread that takes its time."""

    def __init__(self) -> None:
        self.go: trio.Event | None = None

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        if self.go is not None:
            await self.go.wait()
        return function()


@dataclass(frozen=True)
class SlowOffload:
    """Runs functions after so long: as threads on a busy machine."""

    takes_s: float

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        await trio.sleep(self.takes_s)
        return function()


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


async def _come(updates: Updates, state: UnitState, commit: MadeCommit, spoil: bytes = b"") -> None:
    """The results of a commit come chunk by chunk, the first chunk perhaps as other bytes, and are kept."""
    for part, data in zip(commit.record.slices, commit.results, strict=True):
        chunks = [data[begin : begin + CHUNK_BYTES] for begin in range(0, len(data), CHUNK_BYTES)]
        for number, chunk in enumerate(chunks, part.first_chunk):
            await updates.examine(state, OUTER, number, [spoil if spoil and number == 0 else chunk])
        hashes = tuple(leaf_hash(chunk) for chunk in chunks)
        updates.remember(commit.record.parent, part.result_hash, SliceBytes(data, hashes))


async def test_a_state_is_hashed_for_its_root_and_not_while_a_trainer_waits_for_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    def counting(*parts: bytes | memoryview) -> bytes:
        hashed.append(len(parts))
        return leaf_hash(*parts)

    async with _updates() as (world, party, commit, updates):
        monkeypatch.setattr(averaging.state.state, "leaf_hash", counting)
        await commit.write_results(party)
        await _come(updates, world.genesis, commit)
        state = await updates.advance(world.genesis, commit.link, commit.results)
        assert not hashed
        await updates.root(state)
        assert len(hashed) == 2 * GRID.num_chunks + 1


@pytest.mark.parametrize("attempt", ["the one that commits", "one whose first chunk was another"])
async def test_a_state_is_made_while_the_results_come_and_only_what_differs_is_made_again(
    attempt: str, autojump_clock: Clock
) -> None:
    async with _updates() as (world, party, commit, _):
        codec = CountingCodec()
        updates = Updates(replace(party.chain.tools, results=codec))
        is_other = attempt != "the one that commits"
        await commit.write_results(party)
        await _come(updates, world.genesis, commit, CODEC.encode(torch.ones(10)) if is_other else b"")
        data, codec.num_decoded = await updates.read(commit.link), 0
        assert data is not None
        state = await updates.advance(world.genesis, commit.link, data)
        assert codec.num_decoded == (10 if is_other else 0)
        plain = await Updates(party.chain.tools).advance(world.genesis, commit.link, commit.results)
        assert await updates.root(state) == state_root(state, GRID) == state_root(plain, GRID)


async def test_threads_that_make_chunks_or_begin_meanwhile_are_waited_for_while_one_after_another_ends(
    autojump_clock: Clock,
) -> None:
    async with _updates() as (world, party, commit, _):
        codec = CountingCodec()
        updates = Updates(replace(party.chain.tools, results=codec, offload=SlowOffload(0.6 * THREADS_WITHIN_S)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_come, updates, world.genesis, commit)
            await trio.testing.wait_all_tasks_blocked()
            state = await updates.advance(world.genesis, commit.link, commit.results)
        plain = await Updates(party.chain.tools).advance(world.genesis, commit.link, commit.results)
        assert codec.num_decoded == GRID.num_elements, "nothing is made twice"
        assert state_root(state, GRID) == state_root(plain, GRID)


async def test_what_a_thread_is_still_at_is_not_taken_for_the_state(autojump_clock: Clock) -> None:
    async with _updates() as (world, party, commit, _):
        codec, blocking = CountingCodec(), BlockingOffload()
        updates = Updates(replace(party.chain.tools, results=codec, offload=blocking))
        await _come(updates, world.genesis, commit)
        async with trio.open_nursery() as nursery:
            blocking.go = trio.Event()
            ahead, other = range(GRID.num_chunks), CODEC.encode(torch.ones(10))
            updates._ahead = None  # another attempt's results come anew
            nursery.start_soon(updates.examine, world.genesis, OUTER, ahead.start, [other])
            await trio.testing.wait_all_tasks_blocked()
            blocking.go, go, began_s = None, blocking.go, trio.current_time()
            state = await updates.advance(world.genesis, commit.link, commit.results)
            assert trio.current_time() - began_s == pytest.approx(THREADS_WITHIN_S)
            go.set()
        plain = await Updates(party.chain.tools).advance(world.genesis, commit.link, commit.results)
        assert state_root(state, GRID) == state_root(plain, GRID)


async def test_the_state_of_another_outer_step_is_not_taken(autojump_clock: Clock) -> None:
    async with _updates() as (world, party, commit, updates):
        halved = replace(OUTER, learning_rate=OUTER.learning_rate / 2)
        for number in range(GRID.num_chunks):
            chunk = b"".join(commit.results)[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            await updates.examine(world.genesis, halved, number, [chunk])
        state = await updates.advance(world.genesis, commit.link, commit.results)
        plain = await Updates(party.chain.tools).advance(world.genesis, commit.link, commit.results)
        assert state_root(state, GRID) == state_root(plain, GRID)


async def test_advancing_leaves_the_state_before_as_it_was(autojump_clock: Clock) -> None:
    async with _updates() as (world, _, commit, updates):
        before = state_root(world.genesis, GRID)
        await updates.advance(world.genesis, commit.link, commit.results)
        assert state_root(world.genesis, GRID) == before


async def test_nothing_advances_to_the_start_of_the_run(autojump_clock: Clock) -> None:
    async with _updates() as (world, _, _, updates):
        with pytest.raises(LocalProtocolError, match="without a record"):
            await updates.advance(world.genesis, world.start, [])
