"""Columns of text in tables of Arrow: of parquet files and of Hugging Face data sets. Only hosts with such sources need pyarrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from averaging.data.sources.texts import no_text
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow import DataType


def check_column(place: str, kinds: Mapping[str, DataType], column: str, *, is_text: bool = True) -> None:
    """Reject a table without such a column, or one that is not of text.

    Args:
        place: the table's name in errors.
        kinds: the types of its columns by name.
        column: the name.
        is_text: whether it must be of text.

    Raises:
        ConfigError: the column is missing, or is not text.
    """
    from pyarrow.types import is_null

    if column not in kinds:
        known = ", ".join(list(kinds)[:8])[:120] or "none"
        raise ConfigError(
            f"{place} has no column {column!r}; its columns: {known}",
            "a column of what the run reads",
            "set data.field",
        )
    if is_null(kinds[column]):
        raise no_text(f"{place}, every row", column)
    if is_text and not _is_text(kinds[column]):
        raise ConfigError(
            f"{place}: column {column!r} holds {str(kinds[column])[:120]}",
            "strings",
            "set data.field to a column of text, or save this one as strings",
        )


def _is_text(kind: DataType) -> bool:
    """Whether the values are strings or bytes, in whatever way Arrow keeps them. Bytes may be text without a mark that says so."""
    from pyarrow import types

    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _is_text(kind.value_type)
    storage = getattr(kind, "storage_type", None)  # of an extension, such as JSON
    if storage is not None:
        return _is_text(storage)
    known = (
        types.is_string, types.is_large_string, types.is_string_view,
        types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary,
    )  # fmt: skip
    return any(is_kind(kind) for is_kind in known)


def text_of(value: object, place: str, column: str) -> str:
    """The text of a value of such a column. `place` is the row in errors.

    Raises:
        ConfigError: it is missing, or bytes that are no UTF-8.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{place} is no UTF-8", "UTF-8 text", "save the column as strings, in UTF-8") from error
    if not isinstance(value, str):
        raise no_text(place, column)
    return value
