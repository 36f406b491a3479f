"""Packed data: token shards named by their hash, the manifest that lists them, and a cache that trusts nothing it has not checked.

A shard is tokens as little-endian uint16. The weights that a run starts with, if they are given, are shards, too:
float32, each as long as two tokens. The data set's id is the hash of its manifest, so whoever has the id can check every byte,
wherever it came from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from averaging.data.corpus import Document
from averaging.data.tokenizer import Tokens, encode_document
from protocol.errors import MachineError, RemoteProtocolError, StorageError

_TOKEN_BYTES: Final = 2
_VALUE_BYTES: Final = 4
NO_START: Final = memoryview(b"")
"""The run's first values follow from its seed."""

MANIFEST_NAME: Final = "dataset.json"
_ID_DOMAIN: Final = b"potluck dataset 1"


class ShardEntry(BaseModel):
    """One shard: its SHA-256, its tokens, and which part of the data it belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    num_tokens: Annotated[int, Field(ge=1, le=1 << 40)]
    split: Literal["train", "heldout", "start"]

    @property
    def num_bytes(self) -> int:
        """Length of the shard's file."""
        return self.num_tokens * _TOKEN_BYTES


class DatasetManifest(BaseModel):
    """What the data set is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: str
    num_documents: Annotated[int, Field(ge=1)]
    licence: str
    shards: Annotated[list[ShardEntry], Field(min_length=2, max_length=1 << 20)]

    def canonical_bytes(self) -> bytes:
        """Compact ASCII JSON with sorted keys."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        ).encode()

    @property
    def dataset_id(self) -> str:
        """64 hex digits: hash of the canonical bytes."""
        return sha256(_ID_DOMAIN + self.canonical_bytes()).hexdigest()

    def part(self, split: Literal["train", "heldout", "start"]) -> Sequence[ShardEntry]:
        """The shards of one part, in order."""
        return tuple(entry for entry in self.shards if entry.split == split)

    def num_tokens(self, split: Literal["train", "heldout"]) -> int:
        """Tokens of one part."""
        return sum(entry.num_tokens for entry in self.part(split))


def parse_dataset(data: bytes, expected_id: str) -> DatasetManifest:
    """A manifest as received.

    Raises:
        RemoteProtocolError: not a manifest, or not the one with that id.
    """
    try:
        manifest = DatasetManifest.model_validate_json(data)
    except ValidationError as error:
        raise RemoteProtocolError(
            f"a data set's manifest that cannot be read ({error.error_count()} problems)", "the host's"
        ) from error
    if manifest.dataset_id != expected_id:
        raise RemoteProtocolError(
            f"data set {manifest.dataset_id[:8]}", f"{expected_id[:8]}, as the run's manifest says"
        )
    return manifest


def pack(
    documents: Sequence[Document],
    folder: Path,
    *,
    shard_bytes: int,
    source: str,
    licence: str,
    start: memoryview = NO_START,
) -> DatasetManifest:
    """Write the documents' tokens, and the bytes of the weights to start with, as shards into `folder` and return the manifest, which
    is written last.

    Raises:
        MachineError: a document cannot be read.
        StorageError: the folder cannot be written.
    """
    entries: list[ShardEntry] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "heldout"):
            chosen = [d for d in documents if d.is_heldout == (split == "heldout")]
            for tokens in _cut(chosen, shard_bytes // _TOKEN_BYTES):
                data = tokens.astype("<u2").tobytes()
                name = sha256(data).hexdigest()
                _write(folder / name, data)
                entries.append(
                    ShardEntry(sha256=name, num_tokens=len(tokens), split="heldout" if split == "heldout" else "train")
                )
        start_bytes = shard_bytes // _VALUE_BYTES * _VALUE_BYTES
        for begin in range(0, len(start), start_bytes):
            part = start[begin : begin + start_bytes]
            name = sha256(part).hexdigest()
            _write(folder / name, part)
            entries.append(ShardEntry(sha256=name, num_tokens=len(part) // _TOKEN_BYTES, split="start"))
        manifest = DatasetManifest(source=source, num_documents=len(documents), licence=licence, shards=entries)
        _write(folder / MANIFEST_NAME, manifest.canonical_bytes())
    except OSError as error:
        raise StorageError(
            f"packed data cannot be written to {folder}: {error}", "a writable folder with space"
        ) from error
    return manifest


def _cut(documents: Sequence[Document], tokens_per_shard: int) -> Iterator[Tokens]:
    rest = np.empty(0, dtype=np.uint16)
    for document in documents:
        try:
            text = document.path.read_bytes()
        except OSError as error:
            raise MachineError(f"{document.path} cannot be read: {error.strerror}", "a readable file") from error
        rest = np.concatenate([rest, encode_document(text)])
        while len(rest) >= tokens_per_shard:
            yield rest[:tokens_per_shard]
            rest = rest[tokens_per_shard:]
    if len(rest):
        yield rest


def _write(path: Path, data: bytes | memoryview) -> None:
    temporary = path.with_name(path.name + ".unfinished")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class ShardCache:
    """Shards on disk, at most `max_bytes`; each is checked once, when it comes in and when it is first used."""

    def __init__(self, folder: Path, max_bytes: int = 1 << 40) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._checked: set[str] = set()

    def path(self, name: str) -> Path:
        """Where the shard lies."""
        return self._folder / name

    def has(self, entry: ShardEntry) -> bool:
        """Whether the shard is here and whole; a damaged one is removed."""
        path = self.path(entry.sha256)
        if entry.sha256 in self._checked and path.exists():
            return True
        if not path.exists():
            return False
        if sha256(path.read_bytes()).hexdigest() != entry.sha256:
            path.unlink()
            return False
        self._checked.add(entry.sha256)
        return True

    def read(self, name: str) -> bytes | None:
        """A shard's bytes, or None."""
        path = self.path(name)
        return path.read_bytes() if path.is_file() else None

    def put(self, entry: ShardEntry, data: bytes) -> None:
        """Keep a shard that was fetched.

        Raises:
            RemoteProtocolError: other bytes than the hash names.
            StorageError: the cache is full, or the disk is.
        """
        if sha256(data).hexdigest() != entry.sha256:
            raise RemoteProtocolError(
                f"bytes that are not shard {entry.sha256[:8]}", "bytes of that hash", "ask another peer"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        used = sum(path.stat().st_size for path in self._folder.iterdir() if path.is_file())
        if used + len(data) > self._max_bytes:
            raise StorageError(
                f"the data cache holds {used} bytes", f"at most {self._max_bytes}", "raise POTLUCK_PEER_CACHE_BYTES"
            )
        try:
            _write(self.path(entry.sha256), data)
        except OSError as error:
            raise StorageError(f"a shard cannot be written to {self._folder}: {error}", "space on the disk") from error
        self._checked.add(entry.sha256)


class TokenReader:
    """One part of the data set as a single long sequence of tokens, mapped from its shards."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._shards = [np.memmap(path, dtype="<u2", mode="r") for path in paths]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return int(self._starts[-1])

    def read(self, start: int, num_tokens: int) -> Tokens:
        """(num_tokens,) uint16 from `start`, across shards."""
        parts: list[Tokens] = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while num_tokens > 0:
            offset = start - int(self._starts[shard])
            part = np.asarray(self._shards[shard][offset : offset + num_tokens], dtype=np.uint16)
            parts.append(part)
            start += len(part)
            num_tokens -= len(part)
            shard += 1
        return np.concatenate(parts)
