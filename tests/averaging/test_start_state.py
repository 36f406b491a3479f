"""The state before the first commit."""

from __future__ import annotations

import torch

from averaging.start_state import NO_HEAD, start_root, start_state
from averaging.state import state_root
from protocol.ids import CommitId, UnitName
from protocol.tensor_schema import ChunkGrid, TensorSchema, TensorSpec

SCHEMA = TensorSchema(UnitName("fragment-0"), (TensorSpec("embed.weight", (5, 4)), TensorSpec("norm.weight", (4,))))
GRID = ChunkGrid(SCHEMA.num_elements, 7)


def test_start_root_is_that_of_the_state_before_its_head_is_known() -> None:
    state = start_state(SCHEMA, seed=1)
    assert (state.head, state.index, state.total_tokens) == (NO_HEAD, 0, 0)
    assert not state.momentum_N.any()
    assert start_root(SCHEMA, GRID, seed=1) == state_root(state, GRID)
    assert start_root(SCHEMA, GRID, seed=2) != start_root(SCHEMA, GRID, seed=1)


def test_head_changes_the_root_but_not_the_values() -> None:
    plain, named = start_state(SCHEMA, 1), start_state(SCHEMA, 1, CommitId(b"g" * 32))
    assert torch.equal(plain.anchor_N, named.anchor_N)
    assert state_root(plain, GRID) != state_root(named, GRID)
