"""Bytes from the wire, before they are trusted: parsed within their length, their values within their bounds."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES

MAX_TEXT: Final = 256
"""Longest text field: peer ids have 52 letters, reasons are cut to one line by their makers."""

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes, max_bytes: int) -> M:
    """A protobuf message from its bytes.

    Raises:
        RemoteProtocolError: too long, or no such message.
    """
    if len(data) > max_bytes:
        raise RemoteProtocolError(f"{kind.__name__} of {len(data)} bytes", f"at most {max_bytes}")
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"bytes that are no {kind.__name__} ({error})", "a whole message") from error
    return message


def values_by_name(source: object, kind: type[Message]) -> dict[str, Any]:
    """The fields of a message of this kind, read from the attributes of `source`. Fields that are messages are left out."""
    return {field.name: getattr(source, field.name) for field in kind.DESCRIPTOR.fields if field.message_type is None}


def fields_by_name(message: Message) -> dict[str, Any]:
    """The values of a message by their names: repeated ones as tuples, absent ones as None. Fields that are messages are left out.

    The values are as the sender wrote them: the classes made of them check their bounds.
    """
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            value = getattr(message, field.name)
            is_one = isinstance(
                value, str | bytes | int | float
            )  # descriptors spell it differently from release to release
            is_absent = is_one and field.has_presence and not message.HasField(field.name)
            values[field.name] = None if is_absent else value if is_one else tuple(value)
    return values


def require(is_fine: bool, found: str, expected: str) -> None:
    """Raise RemoteProtocolError unless `is_fine`."""
    if not is_fine:
        raise dropped(found, expected)


def dropped(found: str, expected: str) -> RemoteProtocolError:
    """The error that `require` raises."""
    return RemoteProtocolError(found, expected, "the message was dropped")


def require_hash_or_none(name: str, value: bytes) -> None:
    """Check for 32 bytes, or none at all: before the start there is nothing to hash."""
    require(len(value) in (0, HASH_BYTES), f"{name} of {len(value)} bytes", f"none or {HASH_BYTES} bytes")


def shown(text: str) -> str:
    """A stranger's text in a form that is safe to show: at most 256 letters, and no control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT])
