"""The tensors of a unit and their places in the unit's flat vector, without any tensor library.

Two peers average only when their schemas have one fingerprint: names, shapes and order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Literal

from protocol.errors import ConfigError, LocalProtocolError
from protocol.ids import UnitName

StartKind = Literal["noise", "residual", "ones", "zeros", "fan_in"]
"""A tensor's first values (averaging/arithmetic/genesis.py): noise; smaller noise, of a matrix that writes into the residual
stream; ones, of a norm's weight; zeros, of a bias; noise by the number of columns, of an adapter.
"""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A float32 tensor: its name in the model, its shape, and how its first values are made, which is no part of its identity."""

    name: str
    shape: tuple[int, ...]
    start: StartKind = field(default="noise", compare=False)

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)


@dataclass(frozen=True)
class TensorSchema:
    """The tensors of a unit in the order in which they lie in its flat vector (N,) float32."""

    unit: UnitName
    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.tensors]
        if len(set(names)) != len(names) or not names:
            raise ConfigError(f"unit {self.unit} with tensors {names}", "at least one tensor, each name once")
        if any(size < 1 for spec in self.tensors for size in spec.shape):
            raise ConfigError(f"unit {self.unit} has a tensor with an empty dimension", "sizes of at least 1")

    @cached_property
    def num_elements(self) -> int:
        """N, the length of the flat vector."""
        return sum(spec.num_elements for spec in self.tensors)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """First element of each tensor in the flat vector."""
        offsets, begin = {}, 0
        for spec in self.tensors:
            offsets[spec.name] = begin
            begin += spec.num_elements
        return offsets

    def offset(self, name: str) -> int:
        """First element of the tensor `name`.

        Raises:
            LocalProtocolError: the schema has no such tensor.
        """
        if name not in self.offsets:
            raise LocalProtocolError(f"tensor {name!r} in unit {self.unit}", f"one of its {len(self.tensors)} tensors")
        return self.offsets[name]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[TensorSpec, int, int]]:
        """The tensors that lie in the elements [start, stop) of the flat vector, in order. Each comes with the first of its own
        elements that lies there, and the one after the last.
        """
        begins = self._begins
        for place in range(max(0, bisect_right(begins, start) - 1), len(begins)):
            spec, begin = self.tensors[place], begins[place]
            if begin >= stop:
                return
            first, last = max(start - begin, 0), min(stop - begin, spec.num_elements)
            if first < last:
                yield spec, first, last

    @cached_property
    def _begins(self) -> tuple[int, ...]:
        return tuple(self.offsets.values())

    def fingerprint(self) -> bytes:
        """32 bytes that two peers compare before they average."""
        lines = [f"{spec.name} {'x'.join(map(str, spec.shape))} f32" for spec in self.tensors]
        return sha256("\n".join(["potluck schema 1", self.unit, *lines]).encode()).digest()


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The fixed cut of a flat vector into chunks: independent of slices, and the same for all attempts."""

    num_elements: int
    chunk_elements: int

    def __post_init__(self) -> None:
        if self.num_elements < 1 or self.chunk_elements < 1:
            raise ConfigError(
                f"a grid of {self.num_elements} elements in chunks of {self.chunk_elements}", "both at least 1"
            )

    @property
    def num_chunks(self) -> int:
        """Chunks of the whole vector; the last may be shorter."""
        return -(-self.num_elements // self.chunk_elements)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """[start, stop) of one chunk in elements."""
        return self.span(chunk, chunk + 1)

    def span(self, first_chunk: int, stop_chunk: int) -> tuple[int, int]:
        """[start, stop) of the chunks [first_chunk, stop_chunk) in elements.

        Raises:
            LocalProtocolError: not a range of this grid.
        """
        if not 0 <= first_chunk < stop_chunk <= self.num_chunks:
            raise LocalProtocolError(f"chunks [{first_chunk}, {stop_chunk})", f"a range within 0 to {self.num_chunks}")
        return first_chunk * self.chunk_elements, min(stop_chunk * self.chunk_elements, self.num_elements)
