"""The outer step: how a committed average moves the anchor. protocol/kinds/outer_table.py lists the kinds;
averaging/arithmetic/outer has a module for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch

from averaging.arithmetic.outer.outer_kind import OuterKind, Vectors
from averaging.arithmetic.vectors import new_vector
from averaging.bundled_kinds import load_kind
from averaging.codecs import Codec
from protocol.errors import RemoteProtocolError
from protocol.kinds.outer_table import OUTER_STEPS
from protocol.rounds.messages.record import OuterStep

KINDS: Final[Mapping[str, OuterKind]] = MappingProxyType(
    {name: load_kind("averaging.arithmetic.outer", name, name, OuterKind) for name in OUTER_STEPS}  # type: ignore[type-abstract]
)
"""The arithmetic of every outer step in the table."""


def moved_vectors(before: Vectors, outer: OuterStep) -> Vectors:
    """Uninitialised memory for the state after a commit: the anchor, then the state vectors. A vector that this kind of step does
    not move is returned as the same tensor.

    Raises:
        RemoteProtocolError: a kind that this version does not know.
    """
    num_moved = _num_moved(outer)
    return (*(new_vector(each_N.numel(), each_N.dtype) for each_N in before[:num_moved]), *before[num_moved:])


def step_into(moved: Vectors, before: Vectors, update_n: torch.Tensor, outer: OuterStep) -> None:
    """Write the state after one commit into `moved`, from `moved_vectors`. All are the same part of the vectors, (n,) float32.

    A part that fits the processor's cache costs less than whole vectors, one operation after another.

    Raises:
        RemoteProtocolError: a kind that this version does not know.
    """
    num_moved = _num_moved(outer)
    KINDS[outer.kind].step_into(moved[:num_moved], before[:num_moved], update_n, outer)


def step_by_encoded(
    moved: Vectors,
    before: Vectors,
    codec: Codec,
    chunks: Sequence[bytes | memoryview],
    chunk_elements: int,
    outer: OuterStep,
) -> bool:
    """As `step_into`, in one pass over the encoded update of whole chunks. Returns False if that is not possible, or the update
    must be refused: then decode it.

    Raises:
        RemoteProtocolError: a kind that this version does not know.
    """
    num_moved = _num_moved(outer)
    parts = moved[:num_moved], before[:num_moved]
    return KINDS[outer.kind].step_by_encoded(*parts, codec, chunks, chunk_elements, outer)


def moves_momentum(outer: OuterStep) -> bool:
    """Whether a step moves more than the anchor.

    Raises:
        RemoteProtocolError: a kind that this version does not know.
    """
    return _num_moved(outer) > 1


def _num_moved(outer: OuterStep) -> int:
    """Number of vectors that a step moves, the anchor included."""
    facts = OUTER_STEPS.get(outer.kind)
    if facts is None:
        expected = f"one of {', '.join(OUTER_STEPS)}"
        raise RemoteProtocolError(f"outer step {outer.kind!r}", expected, "install the run's version of potluck")
    return 1 + facts.state_vectors
