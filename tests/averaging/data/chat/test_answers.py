"""The answers in a rendered conversation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from averaging.data.chat.answers import UnclearAnswers, marked_by_prefixes, marked_by_tag
from averaging.data.chat.chat_rows import Message

TALK = [Message("user", "a"), Message("assistant", "bc"), Message("user", "d"), Message("assistant", "e")]


def _simple(messages: Sequence[Message], begins_answer: bool) -> str:
    return "".join(f"<{each.role[0]}>{each.content}|" for each in messages) + ("<a>" if begins_answer else "")


def _marked(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    return [text[begin:end] for begin, end in spans]


def test_an_answer_is_what_its_message_adds_behind_the_place_where_the_assistant_begins() -> None:
    found = marked_by_prefixes(_simple, TALK)
    assert found.text == "<u>a|<a>bc|<u>d|<a>e|"
    assert _marked(found.text, found.counted) == ["bc|", "e|"]


def test_a_conversation_may_begin_with_an_answer() -> None:
    found = marked_by_prefixes(_simple, TALK[1:2])
    assert _marked(found.text, found.counted) == ["<a>bc|"]


def test_a_template_that_renders_the_beginning_otherwise_is_refused() -> None:
    def forgets(messages: Sequence[Message], begins_answer: bool) -> str:
        return _simple(messages[-2:], begins_answer)

    with pytest.raises(UnclearAnswers, match="renders message 2"):
        marked_by_prefixes(forgets, TALK)


def test_a_template_that_leaves_answers_out_is_refused() -> None:
    def drops(messages: Sequence[Message], begins_answer: bool) -> str:
        return _simple([each for each in messages if each.role == "user"], False)

    with pytest.raises(UnclearAnswers, match="nothing of message 2"):
        marked_by_prefixes(drops, TALK)


def test_marks_are_taken_out_and_what_they_enclose_counts() -> None:
    found = marked_by_tag("q[b]q[]", "[", "]")
    assert (found.text, found.counted) == ("qbq", ((1, 2),))


@pytest.mark.parametrize("rendered", ["a[b", "a]b[c]", "[a[b]]", "[a]]", "ab", "[]"])
def test_marks_that_do_not_enclose_answers_are_refused(rendered: str) -> None:
    with pytest.raises(UnclearAnswers):
        marked_by_tag(rendered, "[", "]")
