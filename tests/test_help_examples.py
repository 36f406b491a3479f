"""The examples that end each command's help: every one is a line that its command understands. None is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import potluck

MOST_EXAMPLES = 2


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands that a user can run, by their words."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, child in below.items():
        yield from _commands(child, (*path, name))


COMMANDS = dict(_commands(typer.main.get_command(potluck.app), ("potluck",)))


def _examples(command: Any) -> list[str]:
    head, *lines = (command.epilog or "").split("\n\n")
    assert head in ("", "Example", "Examples")
    return lines


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_ends_with_examples_that_the_command_understands(path: tuple[str, ...]) -> None:
    lines = _examples(COMMANDS[path])
    assert 1 <= len(lines) <= MOST_EXAMPLES
    for line in lines:
        words = shlex.split(line)
        assert tuple(words[: len(path)]) == path
        # reads flags and values as a run would, and leaves the command itself alone
        COMMANDS[path].make_context(words[len(path) - 1], words[len(path) :])


@pytest.mark.parametrize("wrong", ["--no-such-flag", "--hours soon"])
def test_example_with_a_flag_or_value_that_does_not_exist_would_be_noticed(wrong: str) -> None:
    with pytest.raises(typer.BadParameter.__bases__[0]):
        COMMANDS["potluck", "pause"].make_context("pause", wrong.replace("--hours", "--state-dir a b").split())


def test_every_file_that_a_command_writes_may_be_standard_output() -> None:
    """A new option that writes a file goes through averaging/system/output_file.py, says so in its help, and is listed here."""
    files = {
        f"{' '.join(path[1:])} {option.name}": option.help
        for path, command in COMMANDS.items()
        for option in command.params
        if re.search(r"\bwrite\b.*\bfile\b|\bfile\b.*\bwrite\b|\bfile of\b", option.help or "", re.IGNORECASE)
    }
    assert sorted(files) == [
        "bugreport out",
        "curves csv",
        "demo json_file",
        "demo plot_file",
        "init run_file",
        "plan svg",
        "status trace",
    ]
    assert [name for name, told in files.items() if "; - " not in told] == []


def test_examples_and_what_help_prints_as_it_stands_fit_a_terminal() -> None:
    examples = [line for command in COMMANDS.values() for line in _examples(command)]
    further = [line for command in COMMANDS.values() for line in command.help.partition("\n\n")[2].splitlines()]
    assert [line for line in (*examples, *further) if len(line) > 78] == []
