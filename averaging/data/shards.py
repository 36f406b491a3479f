"""Packed data: token shards named by their hash, the manifest that lists them, and a cache that verifies everything.

A shard holds tokens as little-endian uint16, or as uint32 for a large vocabulary, and where needed bits that say which of them count
and which begin a document (averaging/data/shard_form.py). Given initial weights of a run are shards, too:
float32, each as long as two tokens of two bytes. Weights of a frozen base are bfloat16, each as long as one token. Text for experts
is packed separately for each expert, and the router that selected it is a file of the data set. The data set's id is the hash of its
manifest. So a peer with the id can check every byte from any donor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol
from urllib.parse import quote, unquote_to_bytes

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from averaging.data.assignment import SourceSpan
from averaging.data.shard_form import ShardForm, TokenBytes
from averaging.data.sources.texts import Split
from protocol.errors import RemoteProtocolError, StorageError
from protocol.run.experts_section import MAX_ROUTER_BYTES
from protocol.run.source_section import MAX_SOURCES
from protocol.tensors.expert_schema import MAX_EXPERTS

ShardPart = Split | Literal["start", "base"]
"""Content of a shard: a part of the text, the run's initial weights, or the weights of its frozen base."""

MAX_TOKENIZER_BYTES: Final = 64 << 20
_WEIGHTS: Final = ("start", "base")
"""Parts that are no text."""

_WEIGHTS_FOLDER: Final = "weights"
"""Within the folder of a cache."""

MAX_TEMPLATE_BYTES: Final = 4 << 20
MAX_TASK_BYTES: Final = 32 << 20
MANIFEST_NAME: Final = "dataset.json"
_ID_DOMAIN: Final = b"potluck dataset 1"


Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _quoted(path: Path) -> str:
    return quote(os.fsencode(path))


def _unquoted(value: object) -> Path:
    if isinstance(value, str):
        return Path(os.fsdecode(unquote_to_bytes(value)))
    if not isinstance(value, Path):
        raise ValueError(f"{value!r} is no path")
    return value


ShardPath = Annotated[Path, PlainSerializer(_quoted, when_used="json"), PlainValidator(_unquoted)]
"""A file's path in a message. A path is bytes that may be no text, so JSON has it with percent signs, as URLs do."""


class HashedFile(Protocol):
    """A file of the data set as it is transferred: its SHA-256 and its length."""

    @property
    def sha256(self) -> str:
        """64 hex digits; the file's name."""
        ...

    @property
    def num_bytes(self) -> int:
        """Its length."""
        ...


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Fields with a default value are left out, so that data sets packed without these fields keep their ids."""
        values: dict[str, object] = handler(self)
        fields = type(self).model_fields
        return {name: value for name, value in values.items() if value != fields[name].default}


class ShardEntry(_Part):
    """One shard: its SHA-256, its tokens, its part of the data, and its expert in a data set for experts.

    `num_counted` tells how many of its tokens count in a loss, None if all do. With `has_starts` it says where documents begin.
    `source` is the number of its source in a data set of several.
    """

    sha256: Hex32
    num_tokens: Annotated[int, Field(ge=1, le=1 << 40)]
    split: ShardPart
    token_bytes: TokenBytes = 2
    expert: Annotated[int, Field(ge=0, lt=MAX_EXPERTS)] | None = None
    num_counted: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    has_starts: bool = False
    source: Annotated[int, Field(ge=0, lt=MAX_SOURCES)] | None = None

    @model_validator(mode="after")
    def _check_counts(self) -> ShardEntry:
        if (self.num_counted or 0) > self.num_tokens:
            raise ValueError(f"{self.num_counted} tokens that count of {self.num_tokens}")
        return self

    @property
    def form(self) -> ShardForm:
        """How its bytes are laid out."""
        return ShardForm(self.token_bytes, self.num_counted is not None, self.has_starts)

    @property
    def num_bytes(self) -> int:
        """Length of the shard's file."""
        return self.form.num_bytes(self.num_tokens)


class TokenizerEntry(_Part):
    """The tokenizer's file, for peers that show text. It is transferred like a shard. `end` is the end mark's token."""

    sha256: Hex32
    num_bytes: Annotated[int, Field(ge=1, le=MAX_TOKENIZER_BYTES)]
    vocab_size: Annotated[int, Field(ge=1, le=1 << 20)]
    end: Annotated[int, Field(ge=0, lt=1 << 20)]


class TemplateEntry(_Part):
    """The file of the run's chat template, transferred like a shard (averaging/data/chat/run_template.py)."""

    sha256: Hex32
    num_bytes: Annotated[int, Field(ge=1, le=MAX_TEMPLATE_BYTES)]


class TaskEntry(_Part):
    """The file of a task that measures models, transferred like a shard (averaging/data/tasks/task_file.py)."""

    name: str
    sha256: Hex32
    num_bytes: Annotated[int, Field(ge=1, le=MAX_TASK_BYTES)]
    num_items: Annotated[int, Field(ge=1, le=1 << 20)]


@dataclass(frozen=True, slots=True)
class PackedTask:
    """A task's entry, and the bytes of its file."""

    entry: TaskEntry
    data: bytes


class TextBytes(_Part):
    """Bytes of text in each part, counting an end mark as one. They convert losses per token to losses per byte. If only some
    tokens count, these are the bytes of those.
    """

    train: Annotated[int, Field(ge=1)]
    heldout: Annotated[int, Field(ge=1)]
    prose: Annotated[int, Field(ge=0)] = 0


class RouterEntry(_Part):
    """The file of the router that routed documents to experts, transferred like a shard, and its root (`router_root`).

    `text_bytes` are those of each expert, by expert number; left out if tokens are bytes.
    """

    sha256: Hex32
    num_bytes: Annotated[int, Field(ge=1, le=MAX_ROUTER_BYTES)]
    root: Hex32
    num_experts: Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
    text_bytes: list[TextBytes] | None = None

    @model_validator(mode="after")
    def _check_text_bytes(self) -> RouterEntry:
        if self.text_bytes is not None and len(self.text_bytes) != self.num_experts:
            raise ValueError(f"text_bytes of {len(self.text_bytes)} experts: expected {self.num_experts}")
        return self


class SourceEntry(_Part):
    """One source of a mixture: its name, and its bytes of text; None if tokens are bytes."""

    name: Annotated[str, Field(max_length=64)]
    text_bytes: TextBytes | None = None


class DatasetManifest(_Part):
    """The contents of a data set. Without a tokenizer its tokens are bytes. With a router, all its text belongs to experts. With
    sources, every shard of text belongs to one.
    """

    source: str
    num_documents: Annotated[int, Field(ge=1)]
    licence: str
    shards: Annotated[list[ShardEntry], Field(min_length=2, max_length=1 << 20)]
    tokenizer: TokenizerEntry | None = None
    text_bytes: TextBytes | None = None
    router: RouterEntry | None = None
    tasks: list[TaskEntry] | None = None
    template: TemplateEntry | None = None
    sources: Annotated[list[SourceEntry], Field(max_length=MAX_SOURCES)] | None = None

    @model_validator(mode="after")
    def _check_sources(self) -> DatasetManifest:
        num_sources = len(self.sources or ())
        for entry in self.shards:
            is_of_source = bool(num_sources) and entry.split not in _WEIGHTS
            if (entry.source is not None) != is_of_source or (entry.source or 0) >= max(1, num_sources):
                raise ValueError(f"a shard of source {entry.source} in a data set of {num_sources} sources")
        return self

    @model_validator(mode="after")
    def _check_forms(self) -> DatasetManifest:
        forms = {entry.form for entry in self.shards if entry.split not in _WEIGHTS}
        if len(forms) > 1:
            raise ValueError("shards of text of several forms: expected one")
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> DatasetManifest:
        num_experts = self.router.num_experts if self.router else 0
        for entry in self.shards:
            is_routed = self.router is not None and entry.split not in _WEIGHTS
            if (entry.expert is not None) != is_routed or (entry.expert or 0) >= max(1, num_experts):
                raise ValueError(f"a shard of expert {entry.expert} in a data set for {num_experts} experts")
        return self

    def canonical_bytes(self) -> bytes:
        """Compact ASCII JSON with sorted keys."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        ).encode()

    @property
    def dataset_id(self) -> str:
        """64 hex digits: hash of the canonical bytes."""
        return sha256(_ID_DOMAIN + self.canonical_bytes()).hexdigest()

    @property
    def files(self) -> Sequence[HashedFile]:
        """Everything that a peer fetches, in order."""
        return (*self.shards, *self._files_beside)

    def files_of(self, experts: Collection[int]) -> Sequence[HashedFile]:
        """Files that a holder of these experts fetches, in order; all files in a data set without experts."""
        own = (entry for entry in self.shards if entry.expert is None or entry.expert in experts)
        return (*own, *self._files_beside)

    @property
    def files_without_text(self) -> Sequence[HashedFile]:
        """Files for a peer that reads no text: the run's initial weights, if there are any, and the other files."""
        return (*(entry for entry in self.shards if entry.split == "start"), *self._files_beside)

    def most_bytes(self, holdings: int) -> int:
        """The largest number of bytes that a holder of this many experts fetches, whichever they are."""
        num_experts = self.router.num_experts if self.router else 0
        beside_bytes = sum(file.num_bytes for file in self.files_of(()))
        own_bytes = sorted(
            sum(entry.num_bytes for entry in self.shards if entry.expert == expert) for expert in range(num_experts)
        )
        return beside_bytes + sum(own_bytes[-holdings:] if holdings else ())

    @property
    def _files_beside(self) -> tuple[HashedFile, ...]:
        found = tuple(entry for entry in (self.tokenizer, self.template, self.router) if entry is not None)
        return (*found, *(self.tasks or ()))

    def task(self, name: str) -> TaskEntry:
        """The entry of a task of the run.

        Raises:
            RemoteProtocolError: there is none.
        """
        for entry in self.tasks or ():
            if entry.name == name:
                return entry
        raise RemoteProtocolError(f"a data set without the task {name!r}", "the tasks that the run's manifest names")

    @property
    def form(self) -> ShardForm:
        """How the shards of text are laid out."""
        return self.shards[0].form

    @property
    def token_bytes(self) -> TokenBytes:
        """Bytes of one token in the shards of text."""
        return self.form.token_bytes

    def bytes_per_token(self, split: Split, expert: int | None = None) -> float:
        """Mean length of a token that counts of one part, or of an expert's share of it; 1 for the byte tokenizer and for an empty
        part.
        """
        num_tokens = self.num_counted(split, expert)
        text_bytes = self.text_bytes
        if expert is not None and self.router is not None and self.router.text_bytes is not None:
            text_bytes = self.router.text_bytes[expert]
        if text_bytes is None or not num_tokens:
            return 1.0
        num_bytes = {"train": text_bytes.train, "heldout": text_bytes.heldout, "prose": text_bytes.prose}
        return num_bytes[split] / num_tokens

    def source_spans(self, split: Split, weights: Sequence[float]) -> tuple[SourceSpan, ...]:
        """The places of a mixture's sources in one part, with their weights; empty without a mixture."""
        spans, begin = list[SourceSpan](), 0
        for source, weight in enumerate(weights) if self.sources else ():
            stop = begin + sum(entry.num_tokens for entry in self.part(split) if entry.source == source)
            spans.append(SourceSpan(begin, stop, weight))
            begin = stop
        return tuple(spans)

    def mixed_bytes_per_token(self, split: Split, weights: Sequence[float]) -> float:
        """Like `bytes_per_token`, of what is read of a part where its sources have these weights."""
        sources, num_bytes, num_counted = self.sources or (), 0.0, 0.0
        for source, (entry, weight) in enumerate(zip(sources, weights, strict=True) if sources else ()):
            own = [each for each in self.part(split) if each.source == source]
            counted = sum(each.num_tokens if each.num_counted is None else each.num_counted for each in own)
            share = weight / max(1, sum(each.num_tokens for each in own))
            num_counted += share * counted
            num_bytes += share * (counted if entry.text_bytes is None else getattr(entry.text_bytes, split))
        return num_bytes / num_counted if num_counted else self.bytes_per_token(split)

    @property
    def heldout_shares(self) -> tuple[float, ...]:
        """Each expert's share of the held-out bytes that count, summing to 1; empty in a data set without experts."""
        num_experts = self.router.num_experts if self.router else 0
        sizes = [self.num_counted("heldout", e) * self.bytes_per_token("heldout", e) for e in range(num_experts)]
        return tuple(size / (sum(sizes) or 1.0) for size in sizes)

    def part(self, split: ShardPart, expert: int | None = None) -> Sequence[ShardEntry]:
        """The shards of one part, in order; with `expert`, those of that expert."""
        own = (entry for entry in self.shards if expert is None or entry.expert == expert)
        return tuple(entry for entry in own if entry.split == split)

    def num_tokens(self, split: ShardPart, expert: int | None = None) -> int:
        """Tokens of one part, or of an expert's share of it."""
        return sum(entry.num_tokens for entry in self.part(split, expert))

    def num_counted(self, split: ShardPart, expert: int | None = None) -> int:
        """Tokens of one part that count in a loss, or of an expert's share of it."""
        entries = self.part(split, expert)
        return sum(entry.num_tokens if entry.num_counted is None else entry.num_counted for entry in entries)


def parse_dataset(data: bytes, expected_id: str) -> DatasetManifest:
    """Parse a received manifest.

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


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file under a temporary name first, so that the file is complete even after a crash."""
    temporary = path.with_name(path.name + ".unfinished")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class ShardCache:
    """Shards on disk. Each is checked when it arrives and when it is first used.

    Weights lie in a folder of their own, and the limit is for all other files: a model is as large as it is.

    Args:
        max_bytes: most that files other than weights take.
    """

    def __init__(self, folder: Path, max_bytes: int = 1 << 40) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._checked: set[str] = set()

    def path(self, name: str) -> Path:
        """Path of the shard."""
        weights = self._folder / _WEIGHTS_FOLDER / name
        return weights if weights.is_file() else self._folder / name

    def has(self, entry: HashedFile) -> bool:
        """Whether the shard is here and complete; a damaged one is removed."""
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

    def whole(self, entry: HashedFile) -> Path:
        """Path of a file that is here and matches its hash. Unlike `has`, it removes no damaged file.

        Raises:
            StorageError: it is lost, damaged or cannot be read.
        """
        path = self.path(entry.sha256)
        try:
            data = self.read(entry.sha256)
        except OSError as error:
            found = f"{path} cannot be read ({error.strerror})"
            raise StorageError(
                found, "a shard of the run's data", "repair the disk, or the file's permissions"
            ) from error
        if data is None or sha256(data).hexdigest() != entry.sha256:
            raise StorageError(f"{path} is lost or damaged", "a shard of the run's data", "restore a copy")
        return path

    def read(self, name: str) -> bytes | None:
        """A shard's bytes, or None."""
        path = self.path(name)
        return path.read_bytes() if path.is_file() else None

    def put(self, entry: HashedFile, data: bytes) -> None:
        """Store a fetched shard.

        Raises:
            RemoteProtocolError: the bytes do not match the hash.
            StorageError: the cache or the disk is full.
        """
        if sha256(data).hexdigest() != entry.sha256:
            raise RemoteProtocolError(
                f"bytes that are not shard {entry.sha256[:8]}", "bytes of that hash", "ask another peer"
            )
        is_weights = isinstance(entry, ShardEntry) and entry.split in _WEIGHTS
        folder = self._folder / _WEIGHTS_FOLDER if is_weights else self._folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not is_weights:
                self._check_room(len(data))
            write_whole(folder / entry.sha256, data)
        except OSError as error:
            raise StorageError(f"a shard cannot be written to {folder}: {error}", "space on the disk") from error
        self._checked.add(entry.sha256)

    def _check_room(self, num_bytes: int) -> None:
        num_bytes += sum(path.stat().st_size for path in self._folder.iterdir() if path.is_file())
        if num_bytes > self._max_bytes:
            found = f"text of {num_bytes} bytes in the data cache"
            raise StorageError(found, f"at most {self._max_bytes}", "raise POTLUCK_PEER_CACHE_BYTES")
