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

from averaging.data.packing.base_shards import BaseWeights, write_base
from averaging.data.packing.document_routing import Routing
from averaging.data.shard_form import TokenBytes, packed_shard
from averaging.data.shards import (
    MANIFEST_NAME,
    DatasetManifest,
    PackedTask,
    RouterEntry,
    ShardEntry,
    SourceEntry,
    TaskEntry,
    TemplateEntry,
    TextBytes,
    TokenizerEntry,
    write_whole,
)
from averaging.data.sources.texts import Split, Text
from averaging.data.tokenizer import Bits, EncodingError, Tokenizer, Tokens
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of a document, with the bytes of text that count. `counted` is None if all of them do."""

    tokens: Tokens
    counted: Bits | None
    num_text_bytes: int
    is_first: bool


class _ShardWriter:
    """The shards of one part, each written when it is full."""

    def __init__(self, folder: Path, part: ShardEntry, shard_bytes: int) -> None:
        self._folder, self._part, self._form = folder, part, part.form
        self._tokens_per_shard = self._form.most_tokens(shard_bytes)
        self._waiting: list[tuple[Tokens, Sequence[Bits]]] = []
        self._num_waiting = 0
        self.entries: list[ShardEntry] = []
        self.num_documents = 0
        self.num_own = 0
        """Number of documents whose nearest expert this is: each document of the data set counts once."""
        self.num_text_bytes = 0

    def add(self, piece: _Piece) -> None:
        self.num_text_bytes += piece.num_text_bytes
        self._waiting.append((piece.tokens, self._planes(piece)))
        self._num_waiting += len(piece.tokens)
        while self._num_waiting >= self._tokens_per_shard:
            tokens, planes = self._joined()
            size = self._tokens_per_shard
            self._write(tokens[:size], [plane[:size] for plane in planes])
            self._waiting = [(tokens[size:], [plane[size:] for plane in planes])]
            self._num_waiting = len(tokens) - size

    def finish(self) -> None:
        if self._num_waiting:
            self._write(*self._joined())

    def _planes(self, piece: _Piece) -> list[Bits]:
        planes = []
        if self._form.has_counts:
            all_count = np.ones(len(piece.tokens), dtype=np.bool_)
            planes.append(all_count if piece.counted is None else piece.counted)
        if self._form.has_starts:
            begins = np.zeros(len(piece.tokens), dtype=np.bool_)
            begins[:1] = piece.is_first
            planes.append(begins)
        return planes

    def _joined(self) -> tuple[Tokens, list[Bits]]:
        tokens = np.concatenate([each for each, _ in self._waiting])
        return tokens, [
            np.concatenate([planes[number] for _, planes in self._waiting]) for number in range(self._form.num_planes)
        ]

    def _write(self, tokens: Tokens, planes: Sequence[Bits]) -> None:
        data = packed_shard(tokens, planes, self._form.token_bytes)
        name = sha256(data).hexdigest()
        write_whole(self._folder / name, data)
        num_counted = int(planes[0].sum()) if self._form.has_counts else None
        found = {"sha256": name, "num_tokens": len(tokens), "num_counted": num_counted}
        self.entries.append(self._part.model_copy(update=found))


_Key = tuple[Split, int | None, int | None]
"""Part of the data, source, expert."""

_Parts = Mapping[_Key, _ShardWriter]


@dataclass(frozen=True)
class Packing:
    """The settings of packing, except for its text.

    Attributes:
        shard_bytes: length of every shard but the last one of each part.
        source: the source's name in the manifest.
        licence: of the text.
        start: bytes of the initial weights, little-endian float32; they become the last shards.
        base: the weights of the frozen base; None in a run without an adapter.
        routing: the experts of each document; None in a run without experts.
        tasks: files of the tasks that measure models.
        template: the file of the chat template; empty in a run without chats.
        has_counts: whether only some tokens count, so that shards say which.
        has_starts: whether shards say where documents begin.
        source_names: of a mixture, each of which has shards of its own; empty for no mixture.
    """

    shard_bytes: int
    source: str
    licence: str
    start: memoryview = NO_START
    base: BaseWeights | None = None
    routing: Routing | None = None
    tasks: Sequence[PackedTask] = ()
    template: bytes = b""
    has_counts: bool = False
    has_starts: bool = False
    source_names: Sequence[str] = ()

    @property
    def sources(self) -> list[int | None]:
        """The sources whose text is packed separately. None stands for all text without a mixture."""
        return list(range(len(self.source_names))) if self.source_names else [None]

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
    parts = {key: _writer(folder, packing, size, *key) for key in _keys(packing)}
    document = line = 0
    is_first = True
    for text in texts:
        seen(text)
        piece = _piece(tokenizer, text, size, document, line, is_first=is_first)
        chosen: Sequence[int | None] = (None,) if routing is None else _chosen(routing, document)
        for expert in chosen:
            part = parts[text.split, text.source if packing.source_names else None, expert]
            part.add(piece)
            part.num_documents += text.is_last
            part.num_own += text.is_last and expert == chosen[0]
        document += text.is_last
        line = 0 if text.is_last else line + text.data.count(b"\n")
        is_first = text.is_last or (is_first and not len(piece.tokens))
    if routing is not None and document != len(routing.choices):
        raise _other_text(document, routing)
    for part in parts.values():
        part.finish()
    return parts


def _keys(packing: Packing) -> list[_Key]:
    """All parts, in the order of the manifest."""
    return [(split, source, expert) for split in _SPLITS for source in packing.sources for expert in packing.experts]


def _writer(
    folder: Path, packing: Packing, size: TokenBytes, split: Split, source: int | None, expert: int | None
) -> _ShardWriter:
    part = ShardEntry(
        sha256="0" * 64,
        num_tokens=1,
        split=split,
        token_bytes=size,
        expert=expert,
        num_counted=0 if packing.has_counts else None,
        has_starts=packing.has_starts,
        source=source,
    )
    return _ShardWriter(folder, part, packing.shard_bytes)


def _piece(tokenizer: Tokenizer, text: Text, size: TokenBytes, document: int, line: int, *, is_first: bool) -> _Piece:
    """A piece of a document, which begins after `line` lines of it, with the end mark after its last one."""
    try:
        if text.counted is None:
            tokens, counted = tokenizer.encode(text.data), None
        else:
            tokens, counted = tokenizer.encode_marked(text.data, _checked_spans(text))
    except EncodingError as error:
        place = text.place or f"document {document + 1}"
        raise EncodingError(error.cause, line + error.line, f"data: {place}") from error
    num_text_bytes = len(text.data) if text.counted is None else sum(end - begin for begin, end in text.counted)
    if text.is_last and not (counted is not None and len(tokens) and tokens[-1] == tokenizer.end):
        tokens = np.append(tokens, np.array([tokenizer.end], dtype=f"u{size}"))
        num_text_bytes += text.ends_counted
        counted = None if counted is None else np.append(counted, text.ends_counted)
    return _Piece(tokens, counted, num_text_bytes, is_first)


def _checked_spans(text: Text) -> Sequence[tuple[int, int]]:
    """The parts of a document that count, which are within it, disjoint and in order."""
    spans, last = text.counted or (), 0
    for begin, end in spans:
        if not last <= begin < end <= len(text.data):
            raise ConfigError(
                f"data: {text.place}: a mask from {begin} to {end} in a text of {len(text.data)} bytes",
                "parts of the text, one after another",
                "mend the source",
            )
        last = end
    return spans


def _write_beside(parts: _Parts, tokenizer: Tokenizer, folder: Path, packing: Packing) -> DatasetManifest:
    """Write everything but the text. Returns the whole data set's manifest. Raises ConfigError as `pack`."""
    num_documents = _checked_documents(parts, packing)
    has_words = tokenizer.file is not None
    return DatasetManifest(
        source=packing.source,
        num_documents=num_documents,
        licence=packing.licence,
        shards=[
            *(entry for part in parts.values() for entry in part.entries),
            *_write_start(packing.start, folder, packing.shard_bytes),
            *(write_base(packing.base, folder, packing.shard_bytes) if packing.base is not None else ()),
        ],
        tokenizer=_write_tokenizer(tokenizer, folder),
        text_bytes=_text_bytes(parts, packing.experts) if has_words else None,
        router=_write_router(packing, folder, parts, has_words=has_words),
        sources=_sources(packing, parts, has_words=has_words),
        tasks=_write_tasks(packing.tasks, folder),
        template=_write_template(packing.template, folder),
    )


def _write_template(data: bytes, folder: Path) -> TemplateEntry | None:
    if not data:
        return None
    name = sha256(data).hexdigest()
    write_whole(folder / name, data)
    return TemplateEntry(sha256=name, num_bytes=len(data))


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


def _checked_documents(parts: _Parts, packing: Packing) -> int:
    """Number of documents for training and evaluation, each counted once. Every expert and source must have some of each."""
    num_train, num_heldout = (
        sum(part.num_own for key, part in parts.items() if key[0] == split) for split in _NEEDED_SPLITS
    )
    if not num_train + num_heldout:
        raise ConfigError("data: there is no text in it", "documents with text", "check the keys of [data]")
    for _, source, expert in [key for key in parts if key[0] == "train"]:
        train, heldout = (parts[split, source, expert].num_documents for split in _NEEDED_SPLITS)
        if not train or not heldout:
            whose = "" if expert is None else f" for expert {expert}"
            whose = whose if source is None else f" of source {source + 1}"
            raise ConfigError(
                f"data: {train} documents to train on and {heldout} kept for evaluation{whose}",
                "some of each",
                "add text, or lower data.heldout_every",
            )
    return num_train + num_heldout


def _text_bytes(parts: _Parts, experts: Sequence[int | None]) -> TextBytes:
    """Bytes of text of these experts together; a document that was packed twice counts twice."""
    found = dict.fromkeys(_SPLITS, 0)
    for (split, _, expert), part in parts.items():
        found[split] += part.num_text_bytes if expert in experts else 0
    return TextBytes(**found)


def _sources(packing: Packing, parts: _Parts, *, has_words: bool) -> list[SourceEntry] | None:
    """The sources of a mixture."""
    entries = []
    for number, name in enumerate(packing.source_names):
        own = {key: part for key, part in parts.items() if key[1] == number}
        entries.append(SourceEntry(name=name, text_bytes=_text_bytes(own, [None]) if has_words else None))
    return entries or None


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
