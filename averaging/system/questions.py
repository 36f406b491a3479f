"""Questions to the owner before something is deleted."""

from __future__ import annotations

import sys

import typer

from protocol.errors import UsageError


def is_agreed(question: str, *, yes: bool) -> bool:
    """Whether the owner agrees: at once with `--yes`, otherwise by an answer on standard input.

    Raises:
        UsageError: nobody can answer, as in a script.
        typer.Abort: the owner interrupts.
    """
    if yes:
        return True
    try:
        return typer.confirm(question)
    except typer.Abort as error:
        if sys.stdin.isatty():
            raise
        raise UsageError(
            "nobody answers on standard input", "yes or no", "to delete without a question: --yes"
        ) from error
