"""Rows with conversations or completions, checked. Pure: no template and no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError

ASSISTANT: Final = "assistant"
"""The role whose messages count in the loss."""

ROLES: Final = ("system", "developer", "user", ASSISTANT, "tool")

_PARTS: Final = ("role", "content")

_MOST_SHOWN: Final = 40

Span = tuple[int, int]
"""Begin and end of a part of a text, in its letters or bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text, and the parts of it that count in the loss: disjoint and in order, in letters."""

    text: str
    counted: tuple[Span, ...]


def messages_of(value: object, place: str) -> tuple[Message, ...]:
    """The messages of a row. `place` is the row in errors.

    Raises:
        ConfigError: no list, none, one without a known role or without text, or no answer of the assistant.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _bad(f"{place}: the messages are {_kind(value)}", "a list of messages with role and content")
    if not value:
        raise _bad(f"{place} has no messages", "a conversation with an answer of the assistant")
    found = tuple(_message(each, f"{place}: message {number}") for number, each in enumerate(value, 1))
    if not any(message.role == ASSISTANT for message in found):
        raise _bad(f"{place} has no message of the {ASSISTANT}", "an answer to learn from")
    return found


def completion_of(row: Mapping[str, object], place: str) -> MarkedText:
    """The text of a row with a prompt and a completion. The completion counts.

    Raises:
        ConfigError: one of them is missing or no text, or the completion is empty.
    """
    prompt, completion = (_text(row, name, place) for name in ("prompt", "completion"))
    if not completion:
        raise _bad(f"{place}: the completion is empty", "a text to learn")
    return MarkedText(prompt + completion, ((len(prompt), len(prompt) + len(completion)),))


def _text(row: Mapping[str, object], name: str, place: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise _bad(f"{place}: {name} is {_kind(value)}", "text")
    return value


def _message(value: object, place: str) -> Message:
    if not isinstance(value, Mapping):
        raise _bad(f"{place} is {_kind(value)}", "an object with role and content")
    role, content = (value.get(name) for name in _PARTS)
    if role is None:
        known = ", ".join(str(name)[:_MOST_SHOWN] for name in list(value)[:4]) or "none"
        raise ConfigError(f"{place} has no role; its keys: {known}", "role and content", "rename the keys in all rows")
    if role not in ROLES:
        raise _bad(f"{place} has role {str(role)[:_MOST_SHOWN]!r}", f"one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise _bad(f"{place}: its content is {_kind(content)}", "text")
    others = sorted(str(name)[:_MOST_SHOWN] for name, part in value.items() if name not in _PARTS and part)
    if others:
        raise _bad(f"{place} also has {', '.join(others[:3])}", "role and content alone")
    return Message(str(role), content)


def _kind(value: object) -> str:
    """The kind of a value, in words for somebody who reads JSON."""
    names = {type(None): "missing", bool: "true or false", int: "a number", float: "a number", str: "text"}
    if type(value) in names:
        return names[type(value)]
    return "an object" if isinstance(value, Mapping) else "a list"


def _bad(found: str, expected: str) -> ConfigError:
    return ConfigError(found, expected, "mend or remove the row")
