"""Rows of tables and of JSON lines that are no plain text: conversations, and prompts with completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from averaging.data.chat.chat_rows import MarkedText, Span, completion_of, messages_of
from averaging.data.chat.template_process import ChatTemplate, TemplateProcess
from averaging.data.sources.texts import Text, one_document
from protocol.errors import ConfigError

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
    return ConfigError(f"{place} has no field {field!r}; its fields: {known}", "the text there", "set data.field")


def read_conversations(read: ReadRows, column: str, template: ChatTemplate, heldout_every: int) -> Iterator[Text]:
    """The rendered conversation of every row, in order. Its answers count.

    Raises:
        ConfigError: a row that is no conversation, or that the template does not take; names the row.
        MachineError: no process can be started for the template.
    """
    with TemplateProcess(template) as process:
        for row in read():
            if column not in row.values:
                raise missing_field(row.place, row.values, column)
            messages = messages_of(row.values[column], row.place)
            yield _marked(process.marked(messages, row.place), row.place, heldout_every)


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
