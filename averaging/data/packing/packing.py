"""Packs text into shards in one pass. Memory holds one shard of each part and one piece of text, however long the text is.

Initial weights become shards, too. Text for experts is packed separately for each expert; a document of two experts is packed
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from averaging.data.packing.document_routing import Routing
from averaging.data.shards import (
    MANIFEST_NAME,
    DatasetManifest,
    PackedTask,
    RouterEntry,
    ShardEntry,
    ShardPart,
    TaskEntry,
    TextBytes,
    TokenBytes,
    TokenizerEntry,
    write_whole,
)
from averaging.data.sources.texts import Split, Text
from averaging.data.tokenizer import EncodingError, Tokenizer, Tokens
from protocol.errors import ConfigError, StorageError

_SMALL_VOCABULARY: Final = 1 << 16
"""Tokens below this are stored in two bytes."""

NO_START: Final = memoryview(b"")
"""The run's first values follow from its seed."""

_VALUE_BYTES: Final = 4

_SPLITS: Final[tuple[Split, ...]] = ("train", "heldout", "prose")
_NEEDED_SPLITS: Final[tuple[Split, ...]] = ("train", "heldout")
"""Parts that must not be empty."""


def token_bytes(vocab_size: int) -> TokenBytes:
    """Bytes of one stored token."""
    return 2 if vocab_size <= _SMALL_VOCABULARY else 4


class _ShardWriter:
    """The shards of one part, each written when it is full."""

    def __init__(
        self, folder: Path, split: ShardPart, size: TokenBytes, shard_bytes: int, expert: int | None = None
    ) -> None:
        self._folder, self._split, self._size, self._expert = folder, split, size, expert
        self._tokens_per_shard = shard_bytes // size
        self._waiting: list[Tokens] = []
        self._num_waiting = 0
        self.entries: list[ShardEntry] = []
        self.num_documents = 0
        self.num_own = 0
        """Number of documents whose nearest expert this is: each document of the data set counts once."""
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
        self.entries.append(
            ShardEntry(
                sha256=name, num_tokens=len(tokens), split=self._split, token_bytes=self._size, expert=self._expert
            )
        )


_Parts = Mapping[tuple[Split, int | None], _ShardWriter]


@dataclass(frozen=True)
class Packing:
    """The settings of packing, except for its text.

    Attributes:
        shard_bytes: length of every shard but the last one of each part.
        source: the source's name in the manifest.
        licence: of the text.
        start: bytes of the initial weights, little-endian float32; they become the last shards.
        routing: the experts of each document; None in a run without experts.
        tasks: files of the tasks that measure models.
    """

    shard_bytes: int
    source: str
    licence: str
    start: memoryview = NO_START
    routing: Routing | None = None
    tasks: Sequence[PackedTask] = ()

    @property
    def experts(self) -> list[int | None]:
        """The experts whose text is packed separately. None stands for all text in a run without experts."""
        return [None] if self.routing is None else list(range(self.routing.router.num_experts))


_Seen = Callable[[Text], None]


def pack(
    texts: Iterable[Text], tokenizer: Tokenizer, folder: Path, packing: Packing, seen: _Seen = lambda _: None
) -> DatasetManifest:
    """Write the tokens of the texts and the initial weights as shards into `folder`. Returns the manifest, which is written last.

    Args:
        texts: documents, piece by piece. Each piece is encoded by itself, so that they should be cut as `whole_documents` does.
        tokenizer: encodes them.
        folder: created if it does not exist.
        packing: the settings.
        seen: called with every piece.

    Raises:
        ConfigError: no document for training or for evaluation, in all or for an expert; another number of documents than were
            routed; a text that the tokenizer cannot encode; or an error of the texts.
        StorageError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        parts = _write_texts(texts, tokenizer, folder, packing, seen)
        manifest = _write_beside(parts, tokenizer, folder, packing)
        write_whole(folder / MANIFEST_NAME, manifest.canonical_bytes())
    except OSError as error:
        raise StorageError(
            f"packed data cannot be written to {folder}: {error}", "a writable folder with space"
        ) from error
    return manifest


def _write_texts(texts: Iterable[Text], tokenizer: Tokenizer, folder: Path, packing: Packing, seen: _Seen) -> _Parts:
    """Write the shards of every part, and return them in the order of the manifest."""
    size, routing = token_bytes(tokenizer.vocab_size), packing.routing
    end = np.array([tokenizer.end], dtype=f"u{size}")
    parts = {
        (split, expert): _ShardWriter(folder, split, size, packing.shard_bytes, expert)
        for split in _SPLITS
        for expert in packing.experts
    }
    document = line = 0
    for text in texts:
        seen(text)
        tokens = _encoded(tokenizer, text, document, line)
        chosen: Sequence[int | None] = (None,) if routing is None else _chosen(routing, document)
        for expert in chosen:
            part = parts[text.split, expert]
            part.add(np.append(tokens, end) if text.is_last else tokens, len(text.data) + text.is_last)
            part.num_documents += text.is_last
            part.num_own += text.is_last and expert == chosen[0]
        document += text.is_last
        line = 0 if text.is_last else line + text.data.count(b"\n")
    if routing is not None and document != len(routing.choices):
        raise _other_text(document, routing)
    for part in parts.values():
        part.finish()
    return parts


def _encoded(tokenizer: Tokenizer, text: Text, document: int, line: int) -> Tokens:
    """The tokens of a piece that begins after `line` lines of its document."""
    try:
        return tokenizer.encode(text.data)
    except EncodingError as error:
        place = text.place or f"document {document + 1}"
        raise EncodingError(error.cause, line + error.line, f"data: {place}") from error


def _write_beside(parts: _Parts, tokenizer: Tokenizer, folder: Path, packing: Packing) -> DatasetManifest:
    """Write everything but the text. Returns the whole data set's manifest. Raises ConfigError as `pack`."""
    num_documents = _checked_documents(parts, packing.experts)
    has_words = tokenizer.file is not None
    return DatasetManifest(
        source=packing.source,
        num_documents=num_documents,
        licence=packing.licence,
        shards=[
            *(entry for part in parts.values() for entry in part.entries),
            *_write_start(packing.start, folder, packing.shard_bytes),
        ],
        tokenizer=_write_tokenizer(tokenizer, folder),
        text_bytes=_text_bytes(parts, packing.experts) if has_words else None,
        router=_write_router(packing, folder, parts, has_words=has_words),
        tasks=_write_tasks(packing.tasks, folder),
    )


def _write_tasks(tasks: Sequence[PackedTask], folder: Path) -> list[TaskEntry] | None:
    for task in tasks:
        write_whole(folder / task.entry.sha256, task.data)
    return [task.entry for task in tasks] or None


def _chosen(routing: Routing, document: int) -> tuple[int, ...]:
    if document >= len(routing.choices):
        raise _other_text(document + 1, routing)
    return routing.choices[document]


def _other_text(document: int, routing: Routing) -> ConfigError:
    return ConfigError(
        f"data: {document} documents, after {len(routing.choices)} were sent to experts",
        "the same text each time it is read",
        "do not change the files while they are packed",
    )


def _write_start(start: memoryview, folder: Path, shard_bytes: int) -> list[ShardEntry]:
    entries = []
    part_bytes = shard_bytes // _VALUE_BYTES * _VALUE_BYTES
    for begin in range(0, len(start), part_bytes):
        part = start[begin : begin + part_bytes]
        name = sha256(part).hexdigest()
        write_whole(folder / name, part)
        entries.append(ShardEntry(sha256=name, num_tokens=len(part) // 2, split="start"))
    return entries


def _checked_documents(parts: _Parts, experts: Sequence[int | None]) -> int:
    """Number of documents for training and evaluation, each counted once. Every expert must have some of each."""
    num_train, num_heldout = (sum(parts[split, expert].num_own for expert in experts) for split in _NEEDED_SPLITS)
    if not num_train + num_heldout:
        raise ConfigError("data: there is no text in it", "documents with text", "check the keys of [data]")
    for expert in experts:
        train, heldout = (parts[split, expert].num_documents for split in _NEEDED_SPLITS)
        if not train or not heldout:
            whose = "" if expert is None else f" for expert {expert}"
            raise ConfigError(
                f"data: {train} documents to train on and {heldout} kept for evaluation{whose}",
                "some of each",
                "add text, or lower data.heldout_every",
            )
    return num_train + num_heldout


def _text_bytes(parts: _Parts, experts: Sequence[int | None]) -> TextBytes:
    """Bytes of text of these experts together; a document that was packed twice counts twice."""
    return TextBytes(**{split: sum(parts[split, expert].num_text_bytes for expert in experts) for split in _SPLITS})


def _write_router(packing: Packing, folder: Path, parts: _Parts, *, has_words: bool) -> RouterEntry | None:
    routing = packing.routing
    if routing is None:
        return None
    data, num_experts = routing.router.to_bytes(), routing.router.num_experts
    name = sha256(data).hexdigest()
    write_whole(folder / name, data)
    text_bytes = [_text_bytes(parts, [expert]) for expert in range(num_experts)] if has_words else None
    return RouterEntry(
        sha256=name,
        num_bytes=len(data),
        root=routing.router.root.hex(),
        num_experts=num_experts,
        text_bytes=text_bytes,
    )


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> TokenizerEntry | None:
    data = tokenizer.file
    if data is None:
        return None
    name = sha256(data).hexdigest()
    write_whole(folder / name, data)
    return TokenizerEntry(sha256=name, num_bytes=len(data), vocab_size=tokenizer.vocab_size, end=tokenizer.end)
