"""Packs the frozen weights of a run's base model into shards of bfloat16, in the order of the model's tensors.

Only one shard is in memory at a time, however large the base is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from averaging.data.shards import ShardEntry, write_whole
from protocol.errors import ConfigError

BASE_VALUE_BYTES: Final = 2
"""A value is a bfloat16, in the place of a token of two bytes."""

MOST_BASE_SHARDS: Final = 512
"""A base of more bytes has longer shards than the text, so that the data set's manifest stays short."""

Bits = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """The base to pack.

    Attributes:
        num_values: of all tensors.
        parts: their values, each as the bits of a bfloat16, in runs of any length.
    """

    num_values: int
    parts: Iterator[Bits]


def write_base(base: BaseWeights, folder: Path, shard_bytes: int) -> list[ShardEntry]:
    """Write the shards into `folder`. Returns their entries, in order.

    Raises:
        ConfigError: the parts have another number of values than `num_values`.
        OSError: the folder cannot be written.
    """
    each = base_shard_values(base.num_values, shard_bytes)
    room, filled, entries = np.empty(min(each, base.num_values), dtype="<u2"), 0, list[ShardEntry]()
    for part in base.parts:
        begin = 0
        while begin < len(part):
            taken = min(len(part) - begin, len(room) - filled)
            room[filled : filled + taken] = part[begin : begin + taken]
            begin, filled = begin + taken, filled + taken
            if filled == len(room):
                entries.append(_write(room, folder))
                filled = 0
    if filled:
        entries.append(_write(room[:filled], folder))
    found = sum(entry.num_tokens for entry in entries)
    if found != base.num_values:
        raise ConfigError(f"a base of {found} values", f"{base.num_values}", "do not change its files meanwhile")
    return entries


def base_shard_values(num_values: int, shard_bytes: int) -> int:
    """Values of each shard but the last."""
    return max(shard_bytes // BASE_VALUE_BYTES, -(-num_values // MOST_BASE_SHARDS))


def _write(values: Bits, folder: Path) -> ShardEntry:
    data = values.data.cast("B")
    name = sha256(data).hexdigest()
    write_whole(folder / name, data)
    return ShardEntry(sha256=name, num_tokens=len(values), split="base")
