"""Rows of conversations and completions: taken where they are whole, refused in a line where they are not."""

from __future__ import annotations

import pytest

from averaging.data.chat.chat_rows import Message, completion_of, messages_of
from protocol.errors import ConfigError

ANSWER = {"role": "assistant", "content": "hi"}


def test_messages_are_read_in_order() -> None:
    found = messages_of([{"role": "user", "content": "hello", "name": None}, ANSWER], "line 1")
    assert found == (Message("user", "hello"), Message("assistant", "hi"))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "the messages are missing"),
        ("hello", "the messages are text"),
        ([], "line 1 has no messages"),
        ([{"role": "user", "content": "a"}], "line 1 has no message of the assistant"),
        (["a"], "message 1 is text; expected an object"),
        ([ANSWER, {"role": "robot", "content": "a"}], "message 2 has role 'robot'; expected one of system"),
        ([{"content": "a"}], "message 1 has no role; its keys: content; expected role and content"),
        (
            [{"from": "human", "value": "a"}],
            "message 1 has no role; its keys: from, value; expected role and content; rename",
        ),
        ([{"role": "assistant", "content": [{"type": "image"}]}], "its content is a list; expected text"),
        ([{"role": "assistant", "content": None}], "its content is missing"),
        ([{**ANSWER, "tool_calls": [1]}], "message 1 also has tool_calls"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_place(value: object, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        messages_of(value, "line 1")
    assert problem in str(caught.value)
    assert str(caught.value).startswith("line 1")


def test_of_a_completion_the_prompt_does_not_count() -> None:
    found = completion_of({"prompt": "1+1=", "completion": "2", "other": 3}, "row 1")
    assert (found.text, found.counted) == ("1+1=2", ((4, 5),))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a"}, "completion is missing"),
        ({"prompt": 1.0, "completion": "b"}, "prompt is a number"),
        ({"prompt": "a", "completion": ""}, "the completion is empty"),
    ],
)
def test_what_is_no_completion_is_refused(row: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        completion_of(row, "row 1")
