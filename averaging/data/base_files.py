"""The frozen base of a run with an adapter, as its checkpoints name it, and where its files are on this machine's disk.

A checkpoint has the adapter alone. The base lies in the data folder of the host or of the peer that the checkpoint is of.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from averaging.data.shards import DatasetManifest, Hex32, ShardCache
from protocol.errors import ConfigError
from protocol.run.manifest import RunConfig
from protocol.tables import in_bytes
from protocol.tensors.adapter_schema import AdapterConfig

_DATA_FOLDER: Final = "data"
_LEVELS: Final = (1, 3)
"""Levels above a checkpoint's folder: HOST/checkpoints/NAME, and STATE/runs/RUN/checkpoints/NAME."""


class BaseFile(BaseModel):
    """A shard of the base."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Hex32
    num_bytes: Annotated[int, Field(ge=1, lt=1 << 63)]


class StoredAdapter(BaseModel):
    """An adapter's numbers, and its base.

    Attributes:
        base_name: run.start_from of the run, as its host wrote it.
        base: the base's shards, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    numbers: AdapterConfig
    base_name: str
    base: tuple[BaseFile, ...]


def stored_adapter(config: RunConfig, dataset: DatasetManifest) -> StoredAdapter | None:
    """The adapter of a run; None in a run without."""
    if config.adapter is None:
        return None
    shards = dataset.part("base")
    return StoredAdapter(
        numbers=config.adapter.config,
        base_name=config.run.start_from,
        base=tuple(BaseFile(sha256=entry.sha256, num_bytes=entry.num_bytes) for entry in shards),
    )


def find_base(checkpoint: Path, adapter: StoredAdapter, given: Path | None = None) -> tuple[Path, ...]:
    """The files of a checkpoint's base, whose hashes are checked. Blocks while all of them are read.

    Args:
        given: the folder to look in; the data folder beside the checkpoint if not given.

    Raises:
        ConfigError: no folder has all of them.
        StorageError: one of them is damaged.
    """
    folders = [given] if given is not None else list(_beside(checkpoint.absolute()))
    for folder in folders:
        cache = ShardCache(folder)
        if all(cache.path(file.sha256).is_file() for file in adapter.base):
            return tuple(cache.whole(file) for file in adapter.base)
    size = in_bytes(sum(file.num_bytes for file in adapter.base))
    missing = next(file.sha256 for file in adapter.base)
    raise ConfigError(
        f"the base of checkpoint {checkpoint}, {size}, is not in {' or '.join(map(str, folders))}",
        f"{len(adapter.base)} files, of which the first is {missing[:16]}...",
        "give the data folder of the run's host or of a peer with --base",
    )


def _beside(checkpoint: Path) -> Iterator[Path]:
    parents = checkpoint.parents
    yield from (parents[level] / _DATA_FOLDER for level in _LEVELS if level < len(parents))
