"""Parquet files: the text in one column, read a page at a time. Only a host with such a source needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from averaging.data.sources.columns import check_column, text_of
from averaging.data.sources.rows import Row
from averaging.data.sources.texts import Text, not_installed, one_document
from protocol.errors import ConfigError, MachineError

ENDINGS: Final = (".parquet",)

_MAGIC: Final = b"PAR1"

_ROWS_AT_ONCE: Final = 64
"""Rows may be long. Small batches keep memory small, and larger ones would not be faster."""

_READ_BYTES: Final = 1 << 20
"""Buffer size. Without it pyarrow reads a column of a whole row group at once, which is often very large."""


def read_parquet(paths: Sequence[Path], column: str, heldout_every: int) -> Iterator[Text]:
    """The text column of every row of every file, in order. Empty texts are left out.

    Raises:
        ConfigError: a file of another kind or without such a column, or a row without text; names file and row.
        MachineError: a file that cannot be read to its end, or pyarrow is missing.
    """
    for path in paths:
        for row in _rows(path, [column], is_text=True):
            if text := text_of(row.values[column], row.place, column):
                yield one_document(text, row.place, heldout_every)


def parquet_rows(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Row]:
    """These columns of every row of every file, in order, whatever they hold. Raises as `read_parquet`."""
    for path in paths:
        yield from _rows(path, columns, is_text=False)


def _rows(path: Path, columns: Sequence[str], *, is_text: bool) -> Iterator[Row]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise not_installed("pyarrow", "parquet files") from error
    number = 0
    try:
        _check_kind(path)
        with parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            kinds = {field.name: field.type for field in file.schema_arrow}
            for column in columns:
                check_column(str(path), kinds, column, is_text=is_text)
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns), use_threads=False):
                for values in zip(*(batch.column(column) for column in columns), strict=True):
                    number += 1
                    found = {name: value.as_py() for name, value in zip(columns, values, strict=True)}
                    yield Row(found, f"{path} row {number}")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} row {number} is no UTF-8", "UTF-8 text", "mend the file") from error
    except (OSError, ValueError) as error:
        # pyarrow's own errors are of these two kinds.
        if isinstance(error, OSError) and error.strerror:
            raise MachineError(f"{path} cannot be read: {error.strerror}", "a readable file") from error
        raise MachineError(
            f"{path} is cut off or damaged after row {number} ({str(error).splitlines()[0][:200]})",
            "a whole file",
            "fetch it again",
        ) from error


def _check_kind(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ConfigError(f"{path} is no parquet file", "one", "check its kind, or data.source")
