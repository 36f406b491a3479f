"""The part of each parameter that each rank holds. Pure.

A parameter is first split among `tensor` ranks, along one dimension or not at all, and its rows are then split among `shard` ranks
as torch splits them: all ranks have as many rows but the last ones, which may have fewer or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from peer.training.plan.layout import Mesh
from peer.training.plan.split_core import tensor_place


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a tensor: the index at which it begins, and its shape."""

    begins: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """To index the whole tensor with."""
        return tuple(slice(begin, begin + size) for begin, size in zip(self.begins, self.shape, strict=True))

    @property
    def num_elements(self) -> int:
        """Values in it."""
        return prod(self.shape)

    def overlap(self, other: Box) -> Box | None:
        """The values that are in both; None if there are none."""
        pairs = list(zip(self.begins, self.shape, other.begins, other.shape, strict=True))
        begins = tuple(max(begin, others_begin) for begin, _, others_begin, _ in pairs)
        ends = tuple(min(begin + size, first + others_size) for begin, size, first, others_size in pairs)
        if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
            return None
        return Box(begins, tuple(end - begin for begin, end in zip(begins, ends, strict=True)))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """To index the part of the tensor that `outer` is, which holds all of this one."""
        begins = (begin - first for begin, first in zip(self.begins, outer.begins, strict=True))
        return tuple(slice(begin, begin + size) for begin, size in zip(begins, self.shape, strict=True))


def whole_box(shape: tuple[int, ...]) -> Box:
    """The part that is all of a tensor."""
    return Box((0,) * len(shape), shape)


def box_of(shape: tuple[int, ...], mesh: Mesh, rank: int, split_dim: int | None = None) -> Box:
    """The part that a rank holds.

    Args:
        shape: of the whole parameter, with one dimension at least.
        split_dim: the dimension that `tensor` ranks share; None where each of them holds all of it.
    """
    begins, sizes = [0] * len(shape), list(shape)
    if split_dim is not None and mesh.tensor > 1:
        begins[split_dim], sizes[split_dim] = _chunk(sizes[split_dim], mesh.tensor, tensor_place(mesh, rank))
    begin, size = _chunk(sizes[0], mesh.shard, rank // mesh.tensor)
    begins[0], sizes[0] = begins[0] + begin, size
    return Box(tuple(begins), tuple(sizes))


def spans_in(box: Box, shape: tuple[int, ...], begin: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """The values [begin, stop) of the whole flattened tensor that lie in a box: rows from and to, and columns from and to, counted in
    the box. A row is all values of one first index. At most three parts.

    Args:
        shape: of the whole tensor; only its first two dimensions may be split.
    """
    width = prod(shape[1:])
    inner = prod(shape[2:])
    left = box.begins[1] * inner if len(shape) > 1 else 0
    wide = box.shape[1] * inner if len(shape) > 1 else 1
    first, last = box.begins[0], box.begins[0] + box.shape[0]
    whole_first, whole_last = -(-begin // width), stop // width
    rows = [(begin // width, begin % width, width if whole_first <= whole_last else stop - begin // width * width)]
    rows = rows if begin % width else []
    if whole_last >= whole_first and stop % width:
        rows.append((whole_last, 0, stop % width))
    for row, column_from, column_to in rows:
        low, high = max(0, column_from - left), min(wide, column_to - left)
        if first <= row < last and low < high:
            yield row - first, row - first + 1, low, high
    low, high = max(first, whole_first), min(last, whole_last)
    if low < high and wide:
        yield low - first, high - first, 0, wide


def _chunk(size: int, parts: int, place: int) -> tuple[int, int]:
    """Begin and length of one of the chunks of torch.chunk, empty beyond its last one."""
    each = -(-size // parts)
    begin = min(place * each, size)
    return begin, min(each, size - begin)
