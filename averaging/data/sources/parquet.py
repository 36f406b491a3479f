"""Parquet files: the text in one column, read a page at a time. Only a host with such a source needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from averaging.data.sources.columns import check_column, text_of
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
        for number, value in enumerate(_values(path, column), 1):
            place = f"{path} row {number}"
            if text := text_of(value, place, column):
                yield one_document(text, place, heldout_every)


def _values(path: Path, column: str) -> Iterator[object]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise not_installed("pyarrow", "parquet files") from error
    number = 0
    try:
        _check_kind(path)
        with parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            check_column(str(path), {field.name: field.type for field in file.schema_arrow}, column)
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[column], use_threads=False):
                for value in batch.column(0):
                    number += 1
                    yield value.as_py()
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
