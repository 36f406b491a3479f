from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import averaging.state.state
from averaging.state.state import (
    StateHashes,
    StateHeader,
    StateParts,
    UnitState,
    chunk_hashes,
    header_from_bytes,
    leaf_of_chunk,
    root_of,
    state_chunks,
    state_root,
)
from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, UnitName
from protocol.merkle import leaf_hash
from protocol.tensors.tensor_schema import ChunkGrid

GRID = ChunkGrid(25, 8)
STATE = UnitState(UnitName("fragment-0"), CommitId(b"h" * 32), 3, 999, torch.arange(25.0), -torch.arange(25.0))


def _chunks(state: UnitState = STATE) -> list[bytes]:
    return [b"".join(parts) for parts in state_chunks(state, GRID)]


def _put_together(header: StateHeader, chunks: Sequence[bytes]) -> UnitState:
    parts = StateParts(header, GRID)
    for chunk, data in enumerate(chunks):
        parts.put(chunk, data)
    return parts.whole()


def test_a_state_comes_back_from_its_header_and_chunks_with_the_same_root() -> None:
    header = header_from_bytes(STATE.header.to_bytes())
    again = _put_together(header, _chunks())
    assert state_root(again, GRID) == state_root(STATE, GRID) == root_of(header, chunk_hashes(STATE, GRID))
    assert torch.equal(again.momentum_N, STATE.momentum_N)
    assert chunk_hashes(STATE, GRID) == tuple(leaf_of_chunk(chunk) for chunk in _chunks())


def test_the_root_sees_every_counter_and_both_vectors() -> None:
    anchor_N, momentum_N = STATE.anchor_N.clone(), STATE.momentum_N.clone()
    anchor_N[24] = 24.000002
    momentum_N[0] = 1e-45
    changed = [
        replace(STATE, index=4),
        replace(STATE, total_tokens=998),
        replace(STATE, head=CommitId(b"i" * 32)),
        replace(STATE, unit=UnitName("fragment-1")),
        replace(STATE, anchor_N=anchor_N),
        replace(STATE, momentum_N=momentum_N),
    ]
    assert len({state_root(state, GRID) for state in [STATE, *changed]}) == 7


def test_roots_of_states_one_after_another_hash_a_momentum_that_does_not_move_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[memoryview] = []

    def counting(*parts: bytes | memoryview) -> bytes:
        hashed.extend(map(memoryview, parts))
        return leaf_hash(*parts)

    still = replace(STATE, index=4, anchor_N=STATE.anchor_N + 1.0)
    moved = replace(still, index=5, momentum_N=STATE.momentum_N + 1.0)
    expected = [state_root(each, GRID) for each in (STATE, still, moved, STATE)]
    monkeypatch.setattr(averaging.state.state, "leaf_hash", counting)
    roots, nums_hashed, hashes = [], [], StateHashes(GRID)
    for state in (STATE, still, moved, STATE):
        hashed.clear()
        roots.append(hashes.root(state))
        nums_hashed.append(len(hashed))
    assert roots == expected
    anchor, whole = GRID.num_chunks + 1, 2 * GRID.num_chunks + 1
    assert nums_hashed == [whole, anchor, whole, whole], "with the header; the momentum before the last is forgotten"


@pytest.mark.parametrize("vector", ["anchor_N", "momentum_N"])
def test_a_missing_short_or_infinite_chunk_is_refused(vector: str) -> None:
    chunks = _chunks()
    infinite = _chunks(replace(STATE, **{vector: torch.full((25,), float("inf"))}))[0]
    for wrong in (chunks[:-1], [*chunks[:-1], chunks[-1][:-1]], [infinite, *chunks[1:]]):
        with pytest.raises(RemoteProtocolError):
            _put_together(STATE.header, wrong)


def test_a_momentum_of_negative_zeros_keeps_its_bytes() -> None:
    negative = replace(STATE, momentum_N=-torch.zeros(25))
    again = _put_together(STATE.header, _chunks(negative))
    assert (
        state_root(again, GRID)
        == state_root(negative, GRID)
        != state_root(replace(STATE, momentum_N=torch.zeros(25)), GRID)
    )


def test_a_state_is_put_together_in_any_order_and_a_chunk_that_comes_twice_counts_once() -> None:
    parts, chunks = StateParts(STATE.header, GRID), _chunks()
    for chunk in [*reversed(range(len(chunks))), 0]:
        parts.put(chunk, chunks[chunk])
    assert parts.num_bytes == sum(map(len, chunks))
    assert state_root(parts.whole(), GRID) == state_root(STATE, GRID)


def test_a_state_of_which_a_chunk_is_missing_is_no_state() -> None:
    parts, chunks = StateParts(STATE.header, GRID), _chunks()
    parts.put(1, chunks[1])
    assert 1 in parts
    assert 0 not in parts
    with pytest.raises(RemoteProtocolError, match="1 state chunks"):
        parts.whole()


@pytest.mark.parametrize("data", [b"", b"x" * 49, STATE.header.to_bytes()[:-1], STATE.header.to_bytes() + b"x"])
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        header_from_bytes(data)
