"""Text to shards, in one pass: a shard of each part and a piece of text are in memory, however much text there is.

Weights to start with become shards, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from averaging.data.shards import (
    MANIFEST_NAME,
    DatasetManifest,
    ShardEntry,
    TextBytes,
    TokenBytes,
    TokenizerEntry,
    write_whole,
)
from averaging.data.texts import Split, Text
from averaging.data.tokenizer import Tokenizer, Tokens
from protocol.errors import ConfigError, StorageError

_SMALL_VOCABULARY: Final = 1 << 16
"""Tokens below this are stored in two bytes."""

NO_START: Final = memoryview(b"")
"""The run's first values follow from its seed."""

_VALUE_BYTES: Final = 4

_SPLITS: Final[tuple[Split, ...]] = ("train", "heldout", "prose")


def token_bytes(vocab_size: int) -> TokenBytes:
    """Bytes of one stored token."""
    return 2 if vocab_size <= _SMALL_VOCABULARY else 4


class _ShardWriter:
    """The shards of one part, each written as soon as it is full."""

    def __init__(self, folder: Path, split: Split, size: TokenBytes, shard_bytes: int) -> None:
        self._folder, self._split, self._size = folder, split, size
        self._tokens_per_shard = shard_bytes // size
        self._waiting: list[Tokens] = []
        self._num_waiting = 0
        self.entries: list[ShardEntry] = []
        self.num_documents = 0
        self.num_text_bytes = 0

    def add(self, tokens: Tokens, num_text_bytes: int) -> None:
        self.num_text_bytes += num_text_bytes
        self._waiting.append(tokens)
        self._num_waiting += len(tokens)
        if self._num_waiting >= self._tokens_per_shard:
            rest = np.concatenate(self._waiting)
            while len(rest) >= self._tokens_per_shard:
                self._write(rest[: self._tokens_per_shard])
                rest = rest[self._tokens_per_shard :]
            self._waiting, self._num_waiting = [rest], len(rest)

    def finish(self) -> None:
        if self._num_waiting:
            self._write(np.concatenate(self._waiting))

    def _write(self, tokens: Tokens) -> None:
        data = tokens.astype(f"<u{self._size}").tobytes()
        name = sha256(data).hexdigest()
        write_whole(self._folder / name, data)
        self.entries.append(ShardEntry(sha256=name, num_tokens=len(tokens), split=self._split, token_bytes=self._size))


def pack(
    texts: Iterable[Text],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    shard_bytes: int,
    source: str,
    licence: str,
    seen: Callable[[Text], None] = lambda _: None,
    start: memoryview = NO_START,
) -> DatasetManifest:
    """Write the tokens of the texts, and weights to start with, as shards into `folder`; returns the manifest, which is written last.

    Args:
        texts: documents, piece by piece.
        tokenizer: cuts them.
        folder: is made where it is not there.
        shard_bytes: length of every shard but the last one of each part.
        source: what the manifest calls the source.
        licence: of the text.
        seen: is told of every piece, as it goes by.
        start: bytes of the weights to start with, little-endian float32; they become the last shards.

    Raises:
        ConfigError: no document for training or none kept for evaluation; or what the texts raise.
        StorageError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        parts = _write_texts(texts, tokenizer, folder, shard_bytes, seen)
        num_train, num_heldout = parts["train"].num_documents, parts["heldout"].num_documents
        _check_both(num_train, num_heldout)
        text_bytes = TextBytes(**{split: part.num_text_bytes for split, part in parts.items()})
        manifest = DatasetManifest(
            source=source,
            num_documents=num_train + num_heldout,
            licence=licence,
            shards=[
                *(entry for split in _SPLITS for entry in parts[split].entries),
                *_write_start(start, folder, shard_bytes),
            ],
            tokenizer=_write_tokenizer(tokenizer, folder),
            text_bytes=None if tokenizer.file is None else text_bytes,
        )
        write_whole(folder / MANIFEST_NAME, manifest.canonical_bytes())
    except OSError as error:
        raise StorageError(
            f"packed data cannot be written to {folder}: {error}", "a writable folder with space"
        ) from error
    return manifest


def _write_texts(
    texts: Iterable[Text], tokenizer: Tokenizer, folder: Path, shard_bytes: int, seen: Callable[[Text], None]
) -> dict[Split, _ShardWriter]:
    """The shards of every part, all written."""
    size = token_bytes(tokenizer.vocab_size)
    end = np.array([tokenizer.end], dtype=f"u{size}")
    parts = {split: _ShardWriter(folder, split, size, shard_bytes) for split in _SPLITS}
    for text in texts:
        seen(text)
        tokens = tokenizer.encode(text.data)
        part = parts[text.split]
        part.add(np.append(tokens, end) if text.is_last else tokens, len(text.data) + text.is_last)
        part.num_documents += text.is_last
    for part in parts.values():
        part.finish()
    return parts


def _write_start(start: memoryview, folder: Path, shard_bytes: int) -> list[ShardEntry]:
    entries = []
    part_bytes = shard_bytes // _VALUE_BYTES * _VALUE_BYTES
    for begin in range(0, len(start), part_bytes):
        part = start[begin : begin + part_bytes]
        name = sha256(part).hexdigest()
        write_whole(folder / name, part)
        entries.append(ShardEntry(sha256=name, num_tokens=len(part) // 2, split="start"))
    return entries


def _check_both(num_train: int, num_heldout: int) -> None:
    if not num_train + num_heldout:
        raise ConfigError("data: there is no text in it", "documents with text", "check data.glob and data.field")
    if not num_train or not num_heldout:
        raise ConfigError(
            f"data: {num_train} documents to train on and {num_heldout} kept for evaluation",
            "some of each",
            "add text, or lower data.heldout_every",
        )


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> TokenizerEntry | None:
    data = tokenizer.file
    if data is None:
        return None
    name = sha256(data).hexdigest()
    write_whole(folder / name, data)
    return TokenizerEntry(sha256=name, num_bytes=len(data), vocab_size=tokenizer.vocab_size, end=tokenizer.end)
