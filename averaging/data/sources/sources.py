"""Opens the `[data]` section of run.toml as a stream of documents. Only the host reads them; peers get shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from averaging.data.chat.template_files import find_template
from averaging.data.sources.corpus import matching_files, python_stdlib_documents, python_topics, text_documents
from averaging.data.sources.domains import MOST_BYTES, domain_texts
from averaging.data.sources.hf_datasets import HubDataset, SavedDataset, dataset_rows, read_dataset
from averaging.data.sources.jsonl import ENDINGS as JSONL_ENDINGS
from averaging.data.sources.jsonl import jsonl_rows, read_jsonl
from averaging.data.sources.parquet import ENDINGS as PARQUET_ENDINGS
from averaging.data.sources.parquet import parquet_rows, read_parquet
from averaging.data.sources.rows import ReadRows, read_completions, read_conversations
from averaging.data.sources.texts import Text, read_files, read_prose
from protocol.errors import ConfigError, StorageError
from protocol.run.data_section import HUB_PREFIX, DataSection

DOMAIN_DOCUMENTS: Final = 300
"""Largest number of documents of each domain; enough for a demo."""


@dataclass(frozen=True, slots=True)
class Source:
    """Text that can be read from its beginning any number of times: a tokenizer may be trained on it first.

    Attributes:
        licence: of the text.
        texts: returns the documents for training and evaluation.
        prose: returns documents for evaluation only; empty if there are none.
    """

    licence: str
    texts: Callable[[], Iterator[Text]]
    prose: Callable[[], Iterator[Text]]


def open_source(data: DataSection, base: Path) -> Source:
    """Open the source that the section names. Files are relative to `base`.

    Raises:
        ConfigError: no such files, or files of another kind.
        MachineError: this Python has no library in source form.
    """
    licence = "PSF-2.0" if data.source == "python-stdlib" else "as the host says"
    if not data.sources:
        return Source(licence, _texts(data, base), _prose(data, base))
    return Source(licence, partial(_mixed, [_texts(part, base) for part in data.parts]), _prose(data, base))


def _mixed(sources: Sequence[Callable[[], Iterator[Text]]]) -> Iterator[Text]:
    """The texts of one source after another, with its number."""
    for number, texts in enumerate(sources):
        for text in texts():
            yield replace(text, source=number)


def source_bytes(data: DataSection, base: Path) -> int:
    """Total length of the section's files, without reading them; an upper bound for domains; 0 for a data set that must be
    downloaded.

    Raises:
        ConfigError, MachineError: as `open_source`.
        StorageError: a file is gone or cannot be read.
    """
    try:
        prose = matching_files(data.prose, base, "data.prose") if data.prose else []
        return sum(path.stat().st_size for path in prose) + sum(_part_bytes(part, base) for part in data.parts)
    except OSError as error:
        raise StorageError(f"{error.filename} cannot be looked at ({error.strerror})", "the files of [data]") from error


def _part_bytes(data: DataSection, base: Path) -> int:
    num_bytes = sum(path.stat().st_size for path in _paths(data, base))
    num_bytes += len(data.domain_names) * DOMAIN_DOCUMENTS * MOST_BYTES  # an upper bound: their contents are not read
    dataset = _dataset(data, base)
    return num_bytes + (dataset.num_bytes() if isinstance(dataset, SavedDataset) else 0)


def _paths(data: DataSection, base: Path) -> list[Path]:
    """The files of one source, but those of a data set."""
    if data.source == "python-stdlib":
        return [document.path for document in python_stdlib_documents(data.heldout_every)]
    if data.source == "text":
        return [document.path for document in text_documents(data.glob, data.heldout_every, base, data.prose)]
    if data.source not in ("hf", "domains"):
        return _files(data, base, JSONL_ENDINGS if data.source == "jsonl" else PARQUET_ENDINGS)
    return []


def _dataset(data: DataSection, base: Path) -> SavedDataset | HubDataset | None:
    if data.source != "hf":
        return None
    if data.dataset.startswith(HUB_PREFIX):
        return HubDataset(data.dataset.removeprefix(HUB_PREFIX), data.configuration, data.split)
    saved = SavedDataset(base.resolve() / data.dataset, data.split)
    saved.check()
    return saved


def _texts(data: DataSection, base: Path) -> Callable[[], Iterator[Text]]:
    if data.format == "chat":
        template = find_template(data, base)
        return partial(read_conversations, _rows(data, base), data.columns[0], template, data.heldout_every)
    if data.format == "completion":
        return partial(read_completions, _rows(data, base), data.heldout_every)
    is_utf8 = data.tokenizer != "bytes"
    if data.source == "domains":
        return partial(domain_texts, data.domain_names, DOMAIN_DOCUMENTS, data.heldout_every)
    dataset = _dataset(data, base)
    if dataset is not None:
        return partial(read_dataset, dataset, data.field, data.heldout_every)
    if data.source == "python-stdlib":
        return partial(read_files, python_stdlib_documents(data.heldout_every), is_utf8=is_utf8)
    if data.source == "text":
        return partial(read_files, text_documents(data.glob, data.heldout_every, base, data.prose), is_utf8=is_utf8)
    if data.source == "jsonl":
        return partial(read_jsonl, _files(data, base, JSONL_ENDINGS), data.field, data.heldout_every)
    return partial(read_parquet, _files(data, base, PARQUET_ENDINGS), data.field, data.heldout_every)


def _rows(data: DataSection, base: Path) -> ReadRows:
    """The rows of a source that has some."""
    dataset = _dataset(data, base)
    if dataset is not None:
        return partial(dataset_rows, dataset, data.columns)
    if data.source == "jsonl":
        return partial(jsonl_rows, _files(data, base, JSONL_ENDINGS))
    return partial(parquet_rows, _files(data, base, PARQUET_ENDINGS), data.columns)


def _prose(data: DataSection, base: Path) -> Callable[[], Iterator[Text]]:
    if data.prose:
        paths = matching_files(data.prose, base, "data.prose")
        return partial(read_prose, paths, is_utf8=data.tokenizer != "bytes")
    topics = python_topics() if data.source == "python-stdlib" else ()
    return lambda: (Text(topic.encode(), "prose") for topic in topics)


def _files(data: DataSection, base: Path, endings: tuple[str, ...]) -> list[Path]:
    paths = matching_files(data.glob, base, left_out=data.prose)
    for path in paths:
        if not path.name.endswith(endings):
            raise ConfigError(
                f"{path} is not {data.source} by its name", " or ".join(endings), "mend data.glob or data.source"
            )
    return paths
