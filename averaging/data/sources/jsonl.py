"""JSON lines, plain or compressed with gzip: one object per line, its text in one field. Memory holds one line at a time."""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from averaging.data.sources.rows import Row, missing_field
from averaging.data.sources.texts import MAX_DOCUMENT_BYTES, Text, one_document, too_long
from protocol.errors import ConfigError, MachineError

ENDINGS: Final = (".jsonl", ".jsonl.gz")

_GZIP_MAGIC: Final = b"\x1f\x8b"

_MAX_LINE_BYTES: Final = 6 * MAX_DOCUMENT_BYTES
"""JSON may take six bytes for one byte of text. Other fields are dropped."""


def read_jsonl(paths: Sequence[Path], field: str, heldout_every: int) -> Iterator[Text]:
    """The text field of every line of every file, in order. Empty lines and empty texts are left out.

    Raises:
        ConfigError: a file of another kind, or a line without such a text; names file and line.
        MachineError: a file that cannot be read to its end.
    """
    for row in jsonl_rows(paths):
        if text := _field(row, field):
            yield one_document(text, row.place, heldout_every)


def jsonl_rows(paths: Sequence[Path]) -> Iterator[Row]:
    """The object of every line of every file, in order. Empty lines are left out. Raises as `read_jsonl`."""
    for path in paths:
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                yield _row(line, f"{path} line {number}")


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(_MAX_LINE_BYTES + 1):
                number += 1
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if len(line) > _MAX_LINE_BYTES:
                    raise too_long(f"{path} line {number}")
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise MachineError(
            f"{path} is cut off or damaged after line {number} ({error})", "a whole file", "fetch it again"
        ) from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}", "a readable file") from error


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    if not path.name.endswith(".gz"):
        return path.open("rb")
    with path.open("rb") as file:
        magic = file.read(len(_GZIP_MAGIC))
    if magic != _GZIP_MAGIC:
        raise ConfigError(f"{path} is no gzip file", "a file compressed with gzip", "check its kind, or its name")
    return gzip.open(path, "rb")


def _row(line: bytes, place: str) -> Row:
    try:
        # A number is no text, whatever its size; Python's whole numbers from text have a limit.
        values = json.loads(line.decode(), parse_int=float)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is no UTF-8", "JSON in UTF-8", "save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is no JSON", "one object a line", "check the file's kind, or mend it") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{place} is no object", 'an object such as {"text": "..."}', "mend it")
    return Row(values, place)


def _field(row: Row, field: str) -> str:
    place, values = row.place, row.values
    if field not in values:
        raise missing_field(place, values, field)
    text = values[field]
    if not isinstance(text, str):
        raise ConfigError(f"{place}: field {field!r} is no text", "a string", "mend it, or set data.field")
    return text
