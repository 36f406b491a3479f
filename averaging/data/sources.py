"""The `[data]` section of run.toml as a stream of documents. Only the host reads them; peers get shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from averaging.data.corpus import matching_files, python_stdlib_documents, text_documents
from averaging.data.jsonl import ENDINGS as JSONL_ENDINGS
from averaging.data.jsonl import read_jsonl
from averaging.data.parquet import ENDINGS as PARQUET_ENDINGS
from averaging.data.parquet import read_parquet
from averaging.data.texts import Text, read_files
from protocol.errors import ConfigError
from protocol.manifest import DataSection


@dataclass(frozen=True, slots=True)
class Source:
    """Text that can be read from its beginning as often as need be: a tokenizer may be trained on it first."""

    licence: str
    texts: Callable[[], Iterator[Text]]


def open_source(data: DataSection, base: Path) -> Source:
    """What the section names; files are relative to `base`.

    Raises:
        ConfigError: no such files, or files of another kind.
        MachineError: this Python has no library in source form.
    """
    is_utf8 = data.tokenizer != "bytes"
    if data.source == "python-stdlib":
        documents = python_stdlib_documents(data.heldout_every)
        return Source("PSF-2.0", partial(read_files, documents, is_utf8=is_utf8))
    if data.source == "text":
        documents = text_documents(data.glob, data.heldout_every, base)
        return _of_host(partial(read_files, documents, is_utf8=is_utf8))
    if data.source == "jsonl":
        return _of_host(partial(read_jsonl, _files(data, base, JSONL_ENDINGS), data.field, data.heldout_every))
    return _of_host(partial(read_parquet, _files(data, base, PARQUET_ENDINGS), data.field, data.heldout_every))


def _of_host(texts: Callable[[], Iterator[Text]]) -> Source:
    return Source("as the host says", texts)


def _files(data: DataSection, base: Path, endings: tuple[str, ...]) -> list[Path]:
    paths = matching_files(data.glob, base)
    for path in paths:
        if not path.name.endswith(endings):
            raise ConfigError(
                f"{path} is not {data.source} by its name", " or ".join(endings), "mend data.glob or data.source"
            )
    return paths
