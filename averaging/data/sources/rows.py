"""Rows of tables and of JSON lines that are no plain text: conversations, and prompts with completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from averaging.data.chat.chat_rows import MarkedText, Message, Span, completion_of, messages_of
from averaging.data.chat.template_process import ChatTemplate, TemplateProcess
from averaging.data.sources.texts import Text, one_document
from protocol.errors import ConfigError, PotluckError

_ROWS_TOGETHER: Final = 64
_LETTERS_TOGETHER: Final = 1 << 18
"""Conversations that are rendered ahead of those that are packed."""

_Talk = tuple[Sequence[Message], str]
"""A conversation, and the name of its row."""

ReadRows = Callable[[], Iterator["Row"]]
"""Returns the rows of a source, each time from the beginning."""


@dataclass(frozen=True, slots=True)
class Row:
    """The values of a row by the names of their columns. `place` is its name in errors."""

    values: Mapping[str, object]
    place: str


def missing_field(place: str, values: Iterable[str], field: str) -> ConfigError:
    """The error for a row without a field that is read."""
    known = ", ".join(list(values)[:8])[:120] or "none"
    return ConfigError(
        f"{place} has no field {field!r}; its fields: {known}", "a field of what the run reads", "set data.field"
    )


def read_conversations(read: ReadRows, column: str, template: ChatTemplate, heldout_every: int) -> Iterator[Text]:
    """The rendered conversation of every row, in order. Its answers count.

    Raises:
        ConfigError: a row that is no conversation, or that the template does not take; names the row.
        MachineError: no process can be started for the template.
    """
    with TemplateProcess(template) as process:
        for talks in _together(_talks(read, column)):
            for (_, place), found in zip(talks, process.marked_each(talks), strict=True):
                yield _marked(found, place, heldout_every)


def _talks(read: ReadRows, column: str) -> Iterator[_Talk]:
    for row in read():
        if column not in row.values:
            raise missing_field(row.place, row.values, column)
        yield messages_of(row.values[column], row.place), row.place


def _together(talks: Iterator[_Talk]) -> Iterator[list[_Talk]]:
    """Some at a time. Those before a row that cannot be read come before its error."""
    waiting, letters = list[_Talk](), 0
    try:
        for talk in talks:
            waiting.append(talk)
            letters += sum(len(message.content) for message in talk[0])
            if letters >= _LETTERS_TOGETHER or len(waiting) >= _ROWS_TOGETHER:
                yield waiting
                waiting, letters = [], 0
    except PotluckError:
        if waiting:
            yield waiting
        raise
    if waiting:
        yield waiting


def read_completions(read: ReadRows, heldout_every: int) -> Iterator[Text]:
    """Prompt and completion of every row as one document, in order. Its completion counts.

    Raises:
        ConfigError: a row without both; names the row.
    """
    for row in read():
        yield _marked(completion_of(row.values, row.place), row.place, heldout_every)


def _marked(found: MarkedText, place: str, heldout_every: int) -> Text:
    return replace(one_document(found.text, place, heldout_every), counted=_in_bytes(found))


def _in_bytes(found: MarkedText) -> tuple[Span, ...]:
    """The parts that count, as bytes of the text in UTF-8."""
    spans, letter, byte = list[Span](), 0, 0
    for begin, end in found.counted:
        first = byte + len(found.text[letter:begin].encode())
        byte = first + len(found.text[begin:end].encode())
        letter = end
        spans.append((first, byte))
    return tuple(spans)
