"""A file of a checkpoint as its manifest names it: by its SHA-256 and its length."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from protocol.plain_file import check_plain_file

_READ_BYTES: Final = 1 << 20

HexHash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A count that fits the encoding of the state root."""

OnRead = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


class FrozenModel(BaseModel):
    """The base of a manifest's parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredFile(FrozenModel):
    """A file of the checkpoint: its SHA-256 and length."""

    sha256: HexHash
    num_bytes: Count


def hash_file(path: Path, on_read: OnRead = lambda _num_bytes: None) -> StoredFile:
    """Hash and length of a file, read once. Blocks.

    Raises:
        ConfigError: it is something other than a file.
        OSError: it cannot be read.
    """
    digest, size = sha256(), 0
    check_plain_file(path, "a file of a checkpoint", "use an older one: potluck checkpoint list")
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            size += len(block)
            on_read(len(block))
    return StoredFile(sha256=digest.hexdigest(), num_bytes=size)
