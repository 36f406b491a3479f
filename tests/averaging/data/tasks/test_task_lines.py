from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from averaging.data.tasks.task_lines import MAX_FILE_BYTES, check_task, read_prompts, read_questions
from protocol.errors import ConfigError, MachineError
from protocol.run.evaluate_section import EvaluateSection

GOOD = {"question": "The capital of France is", "choices": ["Rome", "Paris"], "answer": 1}
TASK = EvaluateSection(name="facts", file="facts.jsonl")
WORDS = EvaluateSection(name="words", file="facts.jsonl", kind="prompts")


def _write(folder: Path, *rows: object) -> None:
    (folder / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")


def test_questions_are_read_by_number_or_by_text_of_the_answer(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, {**GOOD, "answer": "Rome", "source": "ours"})
    first, second = read_questions(TASK, tmp_path)
    assert (first.text, first.choices, first.answer) == ("The capital of France is", ("Rome", "Paris"), 1)
    assert second.answer == 0
    assert second.place.endswith("facts.jsonl line 2")


def test_a_file_may_begin_with_the_byte_order_mark_of_an_editor(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, GOOD)
    file = tmp_path / "facts.jsonl"
    expected = read_questions(TASK, tmp_path)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_questions(TASK, tmp_path) == expected


def test_the_built_in_questions_have_four_choices_each_and_no_question_twice() -> None:
    questions = read_questions(EvaluateSection(name="facts", file="built-in:plain-facts"), Path("nowhere"))
    assert len(questions) >= 40
    assert {len(question.choices) for question in questions} == {4}
    assert len({question.text for question in questions}) == len(questions)
    places = [question.answer for question in questions]
    assert all(places.count(place) >= 5 for place in range(4)), "the right answers stand everywhere"


def test_prompts_are_read(tmp_path: Path) -> None:
    _write(tmp_path, {"prompt": "Once upon"}, {"prompt": "<script>"})
    assert [prompt.text for prompt in read_prompts(WORDS, tmp_path)] == ["Once upon", "<script>"]
    check_task(WORDS, tmp_path)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({**GOOD, "answer": "Berlin"}, "line 1: the answer 'Berlin' is none of its choices"),
        (
            {**GOOD, "answer": 2},
            "line 1: answer 2 is out of range; expected one of the choices, or its number from 0 to 1",
        ),
        ({**GOOD, "answer": -1}, "line 1: answer -1 is out of range"),
        ({**GOOD, "answer": True}, "line 1: the answer 'True' is none of its choices"),
        ({"question": "Q", "choices": ["a", "b"]}, "line 1 has no answer"),
        ({**GOOD, "choices": ["Paris"], "answer": 0}, "line 1 has one choice; expected 2 to 64"),
        ({**GOOD, "choices": []}, "line 1 has 0 choices"),
        ({**GOOD, "choices": ["Paris", "Paris"]}, "line 1 has a choice twice"),
        ({**GOOD, "choices": ["Paris", " "]}, "line 1 has no choices"),
        ({**GOOD, "choices": "Paris"}, "line 1 has no choices"),
        ({**GOOD, "question": "  "}, "line 1 has no question"),
        ({**GOOD, "question": "half \ud83d"}, "line 1 holds half of a character"),
        ({"prompt": "Once"}, "line 1 has no question"),
        ([1, 2], "line 1 is no object"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, row: object, found: str) -> None:
    (tmp_path / "facts.jsonl").write_text(json.dumps(row))
    with pytest.raises(ConfigError) as caught:
        check_task(TASK, tmp_path)
    assert found in caught.value.one_line()
    assert "\n" not in caught.value.one_line()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "facts.jsonl has no questions"),
        (b"\n \n", "facts.jsonl has no questions"),
        (b'{"question": "\xff"}', "line 1 is no UTF-8"),
        (b'\n{"question', "line 2 is no JSON"),
        (b"[" * 100_000, "line 1 is no JSON"),
        (b'{"answer": ' + b"9" * 5000 + b"}", "has a number that is too long"),
        (b" " * (MAX_FILE_BYTES + 1), "is longer than 16 MiB"),
    ],
    ids=["empty", "blank", "not UTF-8", "cut", "deep", "digits", "long"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    (tmp_path / "facts.jsonl").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        check_task(TASK, tmp_path)
    assert found in caught.value.one_line()


def test_a_file_that_is_not_there_and_an_unknown_built_in_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"facts\.jsonl does not exist"):
        check_task(TASK, tmp_path)
    with pytest.raises(ConfigError, match="'built-in:hard-facts'; expected \"built-in:plain-facts\""):
        check_task(EvaluateSection(name="facts", file="built-in:hard-facts"), tmp_path)
    (tmp_path / "facts.jsonl").mkdir()
    with pytest.raises(MachineError, match="cannot be read"):
        check_task(TASK, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a pipe"):
        check_task(EvaluateSection(name="facts", file="pipe"), tmp_path)


def test_more_parts_than_questions_and_more_prompts_than_allowed_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, GOOD, GOOD)
    with pytest.raises(ConfigError, match="3 parts of the 2 questions"):
        check_task(TASK.model_copy(update={"parts": 3}), tmp_path)
    _write(tmp_path, *[{"prompt": "x"}] * 65)
    with pytest.raises(ConfigError, match=r"has 65 prompts; expected at most 64"):
        check_task(WORDS, tmp_path)
