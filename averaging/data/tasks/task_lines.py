"""The questions and prompts of a task, as its author writes them: one JSON object a line. Only the host reads them."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from protocol.errors import ConfigError, MachineError
from protocol.plain_file import check_plain_file
from protocol.run.evaluate_section import BUILT_IN, EvaluateSection
from protocol.scores.score_result import MAX_PROMPTS

BUILT_IN_FILES: Final[Mapping[str, str]] = {"plain-facts": "plain_facts.jsonl"}
"""Files that every install has, beside this module, by their names."""

MAX_FILE_BYTES: Final = 16 << 20
MAX_ITEMS: Final = 20_000
MAX_CHOICES: Final = 64
_SHOWN_LETTERS: Final = 40

Row = Mapping[str, object]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Question:
    """A multiple-choice question. `answer` is the place of the right choice; `place` names the line in errors."""

    text: str
    choices: tuple[str, ...]
    answer: int
    place: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """The beginning of a text that a model continues."""

    text: str
    place: str


def read_questions(task: EvaluateSection, base: Path) -> tuple[Question, ...]:
    """The questions of a multiple-choice task, in order. Blocks.

    Raises:
        ConfigError: no such file, or a line that is no question; names file and line.
        MachineError: the file cannot be read.
    """
    return _read(task, base, _question, "questions", MAX_ITEMS)


def read_prompts(task: EvaluateSection, base: Path) -> tuple[Prompt, ...]:
    """The prompts of a task of the kind "prompts", in order. Raises as `read_questions`. Blocks."""
    return _read(task, base, _prompt, "prompts", MAX_PROMPTS)


def check_task(task: EvaluateSection, base: Path) -> None:
    """Read a task's file, to find what is wrong with it before anything else is done. Raises as `read_questions`. Blocks."""
    if task.kind == "prompts":
        read_prompts(task, base)
    else:
        read_questions(task, base)


def _read(
    task: EvaluateSection, base: Path, made: Callable[[Row, str], Item], what: str, most: int
) -> tuple[Item, ...]:
    path = _path_of(task, base)
    items: list[Item] = []
    for number, line in enumerate(_data(path).removeprefix(BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            place = f"{path} line {number}"
            items.append(made(_row(line, place), place))
    if not items:
        raise ConfigError(f"{path} has no {what}", "one JSON object a line", f"mend evaluate.file of {task.name!r}")
    if len(items) > most:
        raise ConfigError(f"{path} has {len(items)} {what}", f"at most {most}", "take some of them")
    if task.parts > len(items):
        raise ConfigError(
            f"{task.parts} parts of the {len(items)} {what} in {path}",
            "not more parts than there are",
            f"lower evaluate.parts of {task.name!r}",
        )
    return tuple(items)


def _path_of(task: EvaluateSection, base: Path) -> Path:
    if not task.file.startswith(BUILT_IN):
        return base / task.file
    name = task.file.removeprefix(BUILT_IN)
    if name not in BUILT_IN_FILES:
        known = ", ".join(f'"{BUILT_IN}{each}"' for each in BUILT_IN_FILES)
        raise ConfigError(f"evaluate.file is {task.file!r}", f"{known}, or the path of a file", "correct it")
    return Path(__file__).with_name(BUILT_IN_FILES[name])


def _data(path: Path) -> bytes:
    check_plain_file(path, "a file of JSON lines", "check evaluate.file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1).removeprefix(BOM_UTF8)  # with which some editors begin a file
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", "a file of JSON lines", "check evaluate.file") from error
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}", "a readable file") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_FILE_BYTES >> 20} MiB", "a shorter file", "take some of it")
    return data


def _row(line: bytes, place: str) -> Row:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is no UTF-8", "JSON in UTF-8", "save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        found = f"{place} is no JSON, or has a number that is too long"
        raise ConfigError(found, "one object a line", "check the file's kind, or mend it") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{place} is no object", 'an object such as {"question": "...", "choices": [...]}', "mend it")
    return row


def _text(row: Row, key: str, place: str) -> str:
    text = row.get(key)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{place} has no {key}", f'text under "{key}"', "mend or remove the line")
    return _checked(text, place)


def _checked(text: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place} holds half of a character", "text that UTF-8 can hold", "mend it") from error
    return text


def _question(row: Row, place: str) -> Question:
    text, choices = _text(row, "question", place), row.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise ConfigError(f"{place} has no choices", 'a list of texts under "choices"', "mend or remove the line")
    if not 2 <= len(choices) <= MAX_CHOICES:
        counted = "one choice" if len(choices) == 1 else f"{len(choices)} choices"
        raise ConfigError(f"{place} has {counted}", f"2 to {MAX_CHOICES}", "add wrong ones, or remove the line")
    if len(set(choices)) < len(choices):
        raise ConfigError(f"{place} has a choice twice", "each once", "mend or remove the line")
    known = tuple(_checked(choice, place) for choice in choices)
    return Question(text, known, _answer(row.get("answer"), known, place), place)


def _answer(answer: object, choices: tuple[str, ...], place: str) -> int:
    """The place of the right choice, by its number from 0 or by its text."""
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    expected = f"one of the choices, or its number from 0 to {len(choices) - 1}"
    if isinstance(answer, int) and not isinstance(answer, bool):
        if 0 <= answer < len(choices):
            return answer
        raise ConfigError(f"{place}: answer {answer} is out of range", expected, "mend or remove the line")
    if answer is None:
        raise ConfigError(f"{place} has no answer", expected, "mend or remove the line")
    raise ConfigError(
        f"{place}: the answer {str(answer)[:_SHOWN_LETTERS]!r} is none of its choices", expected, "mend or remove it"
    )


def _prompt(row: Row, place: str) -> Prompt:
    return Prompt(_text(row, "prompt", place), place)
