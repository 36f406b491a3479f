"""Finds the assistant's answers in a rendered conversation.

A template may mark them by {% generation %}. Without that tag, an answer is what its message adds to the conversation before it,
rendered up to the place where the assistant begins. That holds only where a conversation's rendering begins with that of its
beginning, which is checked for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from averaging.data.chat.chat_rows import ASSISTANT, MarkedText, Message, Span

Render = Callable[[Sequence[Message], bool], str]
"""Renders messages; with True, up to the place where the assistant begins its next one."""


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
