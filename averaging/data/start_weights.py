"""The weights that a run begins with, as shards of its data set: which of them a unit of the model needs, and where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from averaging.data.shards import DatasetManifest, ShardEntry
from protocol.tensors.tensor_schema import TensorSchema

_TOKENS_OF_VALUE: Final = 2
"""Length of a value, float32, in tokens (averaging/data/shards.py)."""


@dataclass(frozen=True, slots=True)
class StartShard:
    """A file of weights, named by its hash, and how many float32 values it has. It need not be here if no unit held here needs it."""

    path: Path
    num_values: int


def start_shards(dataset: DatasetManifest, path_of: Callable[[str], Path]) -> tuple[StartShard, ...]:
    """The weights of a data set, in the order of the model's values; empty if they follow from the seed."""
    return tuple(StartShard(path_of(entry.sha256), _num_values(entry)) for entry in dataset.part("start"))


def is_needed(names: Iterable[str], model: TensorSchema, begin: int, stop: int) -> bool:
    """Whether the values [begin, stop) of a model hold some of these tensors."""
    wanted = frozenset(names)
    return any(spec.name in wanted for spec, _, _ in model.pieces(begin, stop))


def needed_of(dataset: DatasetManifest, names: Iterable[str], model: TensorSchema) -> Iterator[ShardEntry]:
    """The shards of weights that hold some of these tensors of the model."""
    wanted, begin = frozenset(names), 0
    for entry in dataset.part("start"):
        stop = begin + _num_values(entry)
        if is_needed(wanted, model, begin, stop):
            yield entry
        begin = stop


def _num_values(entry: ShardEntry) -> int:
    return entry.num_tokens // _TOKENS_OF_VALUE
