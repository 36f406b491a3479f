"""PYTHONOPTIMIZE=2 drops the texts of functions; the help stays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest
import typer

import potluck
from averaging.host.help_texts import keep_help_texts, text_below


def _callbacks(app: typer.Typer) -> Iterator[Callable[..., object]]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _callbacks(group.typer_instance)


@pytest.mark.parametrize("callback", list(_callbacks(potluck.app)), ids=lambda callback: callback.__name__)
def test_text_of_each_command_is_read_from_its_file_as_python_reads_it(callback: Callable[..., object]) -> None:
    assert text_below(callback) == inspect.getdoc(callback) != ""


def _leave() -> None:
    """Leave the run.

    Come back later.
    """


def test_commands_have_their_texts_where_python_has_dropped_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_leave, "__doc__", None)
    app, below = typer.Typer(), typer.Typer()
    below.command("out")(_leave)
    app.command(help="Given.")(lambda: None)
    app.add_typer(below, name="below")
    keep_help_texts(app, level=1)
    assert below.registered_commands[0].help is None
    keep_help_texts(app, level=2)
    assert below.registered_commands[0].help == "Leave the run.\n\nCome back later."
    assert app.registered_commands[0].help == "Given."


def test_function_without_a_file_has_no_text() -> None:
    assert text_below(print) == ""
