"""Finds the assistant's answers in a rendered conversation.

A template may mark them by {% generation %}. Without that tag, an answer is what its message adds to the conversation before it,
rendered up to the place where the assistant begins. That holds only where a conversation's rendering begins with that of its
beginning, which is checked for each answer. A template that drops earlier thoughts renders it otherwise. There the answers are
rendered once more with marks around their contents, and an answer is what stands between the place where the assistant begins and
the end of its turn. That holds only where the rendering without the marks is the same, which is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from averaging.data.chat.chat_rows import ASSISTANT, MarkedText, Message, Span

Render = Callable[[Sequence[Message], bool], str]
"""Renders messages; with True, up to the place where the assistant begins its next one."""


THOUGHT_END: Final = "</think>"
"""Templates that drop thoughts take what follows it for the answer."""


class UnclearAnswers(ValueError):
    """The template's rendering does not say where the answers are. The text is a part of a sentence."""


def marked_by_tag(rendered: str, begin_mark: str, end_mark: str) -> MarkedText:
    """The text without the marks of {% generation %}, and the spans that they enclose.

    Raises:
        UnclearAnswers: marks within marks, a lone one, or nothing between any.
    """
    text, spans, rest = "", list[Span](), rendered
    while begin_mark in rest:
        before, _, rest = rest.partition(begin_mark)
        inside, mark, rest = rest.partition(end_mark)
        if not mark or begin_mark in inside or end_mark in before:
            raise UnclearAnswers("its {% generation %} blocks are within one another, or cut")
        text += before
        if inside:
            spans.append((len(text), len(text) + len(inside)))
        text += inside
    if end_mark in rest:
        raise UnclearAnswers("its {% generation %} blocks are within one another, or cut")
    if not spans:
        raise UnclearAnswers("its {% generation %} blocks hold nothing of this conversation")
    return MarkedText(text + rest, tuple(spans))


def marked_by_prefixes(render: Render, messages: Sequence[Message]) -> MarkedText:
    """The text of a conversation, and the spans that its answers add.

    Raises:
        UnclearAnswers: the rendering of a conversation does not begin with that of its beginning, or an answer adds nothing.
    """
    whole, spans = render(messages, False), list[Span]()
    for number, message in enumerate(messages):
        if message.role != ASSISTANT:
            continue
        before = render(messages[:number], True) if number else ""
        is_last = number + 1 == len(messages)
        after = whole if is_last else render(messages[: number + 1], False)
        if not whole.startswith(after) or not after.startswith(before):
            raise UnclearAnswers(
                f"it renders message {number + 1} or what is before it otherwise in the whole conversation, "
                "and has no {% generation %} around answers"
            )
        if len(before) == len(after):
            raise UnclearAnswers(f"it renders nothing of message {number + 1}")
        spans.append((len(before), len(after)))
    return MarkedText(whole, tuple(spans))


def marked_by_marks(render: Render, messages: Sequence[Message], mark: str) -> MarkedText:
    """The text of a conversation, and the spans of its answers, from the place where the assistant begins to the end of its turn.

    Args:
        mark: letters that no message holds.

    Raises:
        UnclearAnswers: marks change the rendering, or it does not show each answer once, in order and with the same ending.
    """
    whole, found = render(messages, False), _read_marks(render(_with_marks(messages, mark), False), mark)
    if found.text != whole:
        raise UnclearAnswers("it renders answers otherwise where they have marks, and has no {% generation %}")
    numbers = [number for number, message in enumerate(messages) if message.role == ASSISTANT]
    if [number for number, _ in found.ends] != numbers:
        raise UnclearAnswers("it does not render each answer once and in order")
    opening = _opening(render, messages[: numbers[0]] or messages)
    closing = closing_of(render, messages[: numbers[-1] + 1], mark)
    spans, free = list[Span](), 0
    for number, end in found.ends:
        inner = min((place for own, place in found.begins if own == number), default=end)
        before = whole.rfind(opening, free, inner) if opening else -1
        begin = inner if before < 0 else before + len(opening)
        free = _end_of_turn(whole, end, messages[number].content, closing)
        if free < 0:
            raise UnclearAnswers(f"it ends message {number + 1} otherwise than the last answer")
        if begin == free:
            raise UnclearAnswers(f"it renders nothing of message {number + 1}")
        spans.append((begin, free))
    return MarkedText(whole, tuple(spans))


@dataclass(frozen=True, slots=True)
class _Marks:
    """A rendering without its marks. `begins` and `ends` have the numbers of messages and the places in the text."""

    text: str
    begins: tuple[Span, ...]
    ends: tuple[Span, ...]


def _with_marks(messages: Sequence[Message], mark: str) -> list[Message]:
    """Marks stand within white space around a content, as a template may strip it, and once more after a thought."""
    found = list(messages)
    for number, message in enumerate(messages):
        if message.role == ASSISTANT:
            content, begin, end = message.content, f"{mark}{number}b", f"{mark}{number}e"
            last = len(content.rstrip())
            thought = content.rfind(THOUGHT_END, 0, last)
            parts = [0] if thought < 0 else [0, thought + len(THOUGHT_END)]
            text = content[last:]
            for part in reversed(parts):
                first = min(last, part + len(content[part:]) - len(content[part:].lstrip()))
                text = content[part:first] + begin + content[first:last] + (end if part == parts[-1] else "") + text
                last = part
            found[number] = Message(message.role, text)
    return found


def _read_marks(rendered: str, mark: str) -> _Marks:
    text, begins, ends, done = "", list[Span](), list[Span](), 0
    for place in re.finditer(re.escape(mark) + r"(\d+)([be])", rendered):
        text += rendered[done : place.start()]
        (begins if place[2] == "b" else ends).append((int(place[1]), len(text)))
        done = place.end()
    return _Marks(text + rendered[done:], tuple(begins), tuple(ends))


def _opening(render: Render, messages: Sequence[Message]) -> str:
    """The text by which the assistant begins; empty where a template has none or does not say it."""
    before, opened = render(messages, False), render(messages, True)
    return opened[len(before) :] if opened.startswith(before) else ""


def closing_of(render: Render, messages: Sequence[Message], mark: str) -> str:
    """The text by which the last message, an answer, ends."""
    stripped = [*messages[:-1], Message(ASSISTANT, messages[-1].content.rstrip())]
    marks = _read_marks(render(_with_marks(stripped, mark), False), mark)
    return marks.text[marks.ends[-1][1] :] if marks.ends else ""


def _end_of_turn(whole: str, end: int, content: str, closing: str) -> int:
    """The end of an answer that is rendered up to the white space at its end, of which a template may keep a part; -1 if it does not
    close there.
    """
    space = content[len(content.rstrip()) :]
    kept = (space[:length] for length in range(len(space), -1, -1))
    return next((end + len(part + closing) for part in kept if whole.startswith(part + closing, end)), -1)
