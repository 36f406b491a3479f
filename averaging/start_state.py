"""The outer state before the first commit, as host and peers each compute it from the manifest.

The genesis commit id is the hash of the start record, and the start record names the state's root; so the root in
the start record is taken with a head of 32 zero bytes.
"""

from __future__ import annotations

from typing import Final

import torch

from averaging.genesis import genesis_anchor
from averaging.state import UnitState, state_root
from protocol.ids import HASH_BYTES, CommitId, Root
from protocol.tensor_schema import ChunkGrid, TensorSchema

NO_HEAD: Final = CommitId(bytes(HASH_BYTES))


def start_state(schema: TensorSchema, seed: int, head: CommitId = NO_HEAD) -> UnitState:
    """Genesis anchor, momentum zero, no tokens; `head` is the genesis commit id once it is known."""
    anchor_N = genesis_anchor(schema, seed)
    return UnitState(schema.unit, head, 0, 0, anchor_N, torch.zeros_like(anchor_N))


def start_root(schema: TensorSchema, grid: ChunkGrid, seed: int) -> Root:
    """The state root that the start record names for a unit."""
    return state_root(start_state(schema, seed), grid)
