"""The texts of `--help`, which stand below the names of commands.

`python -OO` drops them when it loads a module. They are then read from the module's file.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Final

import typer

_DROPS_TEXTS: Final = 2
"""From this level of optimisation on."""


def keep_help_texts(app: typer.Typer, level: int = sys.flags.optimize) -> None:
    """Give every command its text, where Python has dropped it. Call it when all commands are there."""
    if level < _DROPS_TEXTS:
        return
    for command in app.registered_commands:
        if command.help is None and command.callback is not None:
            command.help = text_below(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            keep_help_texts(group.typer_instance, level)


def text_below(function: Callable[..., object]) -> str:
    """The docstring of a function, from its file. Empty if there is none, or no file."""
    try:
        lines = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""
    found = ast.parse(lines).body[0]
    return (ast.get_docstring(found) or "") if isinstance(found, ast.FunctionDef) else ""
