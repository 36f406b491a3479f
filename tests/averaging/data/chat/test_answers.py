"""The answers in a rendered conversation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from averaging.data.chat.answers import Render, UnclearAnswers, marked_by_marks, marked_by_prefixes, marked_by_tag
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


MARK = "c0ffee"
THOUGHT = "<think>\nhm\n</think>\n\n"


def _thinking(messages: Sequence[Message], begins_answer: bool) -> str:
    """Shows the thought of an answer to the last question alone, and an empty one where there is none."""
    last = max((number for number, each in enumerate(messages) if each.role == "user"), default=-1)
    text = ""
    for number, each in enumerate(messages):
        thought, _, said = each.content.rpartition("</think>")
        thought = thought.split("<think>")[-1].strip("\n")
        shown = f"<think>\n{thought}\n</think>\n\n" if each.role == "assistant" and number > last else ""
        text += f"<{each.role[0]}>{shown}{said.lstrip(chr(10))}|\n"
    return text + ("<a>" if begins_answer else "")


@pytest.mark.parametrize("last", ["e", THOUGHT + "e", "\n e ", "<a>", ""])
@pytest.mark.parametrize("first", ["bc", THOUGHT + "bc", "<a>b|\n<u>"])
def test_marks_find_the_answers_where_earlier_thoughts_are_dropped(first: str, last: str) -> None:
    talk = [*TALK[:1], Message("assistant", first), *TALK[2:3], Message("assistant", last)]
    with pytest.raises(UnclearAnswers):
        marked_by_prefixes(_thinking, talk)
    found = marked_by_marks(_thinking, talk, MARK)
    assert found.text == _thinking(talk, False)
    shown = last if last.startswith("<think>") else "<think>\n\n</think>\n\n" + last.lstrip("\n")
    assert _marked(found.text, found.counted) == [first.removeprefix(THOUGHT) + "|\n", shown + "|\n"]


@pytest.mark.parametrize("tail", [[], [Message("user", "and?")], [Message("tool", "5"), Message("user", "<a>")]])
@pytest.mark.parametrize("content", ["bc", " bc ", "b|c", "<a>", "a</think>b", "</think>", "\n"])
def test_marks_find_what_prefixes_find_where_both_can(content: str, tail: list[Message]) -> None:
    for head in ([], [Message("system", "s")], TALK):
        talk = [*head, Message("user", "q"), Message("assistant", content), *tail]
        assert marked_by_marks(_simple, talk, MARK) == marked_by_prefixes(_simple, talk)


def test_without_words_that_open_an_answer_its_own_words_count() -> None:
    def plain(messages: Sequence[Message], begins_answer: bool) -> str:
        return "".join(f"{each.role}: {each.content.strip()}\n" for each in messages)

    found = marked_by_marks(plain, TALK, MARK)
    assert _marked(found.text, found.counted) == ["bc\n", "e\n"]


@pytest.mark.parametrize(
    ("render", "problem"),
    [
        (lambda talk, opens: "".join(each.content.upper() for each in talk), "otherwise where they have marks"),
        (lambda talk, opens: f"{sum(len(each.content) for each in talk)}", "otherwise where they have marks"),
        (lambda talk, opens: "".join(each.content for each in talk[::-1]), "once and in order"),
        (lambda talk, opens: "".join(each.content * 2 for each in talk), "once and in order"),
        (lambda talk, opens: "".join(each.content for each in talk[:2]), "once and in order"),
        (lambda talk, opens: "".join(each.content + "#" for each in talk) + "!", "otherwise than the last"),
    ],
    ids=["changed", "counted", "reversed", "twice", "cut", "other endings"],
)
def test_a_rendering_that_marks_do_not_explain_is_refused(render: Render, problem: str) -> None:
    with pytest.raises(UnclearAnswers, match=problem):
        marked_by_marks(render, TALK, MARK)
