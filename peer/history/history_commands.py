"""`potluck history`: a volunteer's own part in all runs, over restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.tables import examples

if TYPE_CHECKING:
    from peer.history.round_log import RunHistory

_SPANS = ("day", "week", "run")


def add_history_command(app: typer.Typer) -> None:
    """Add the command to the command line."""
    lines = examples("potluck history", "potluck history --by week --json")
    app.command("history", rich_help_panel="For volunteers", epilog=lines)(history)


def history(
    by: Annotated[str, typer.Option(help="A line for each day, week or run.")] = "day",
    run: Annotated[str, typer.Option("--run", help="Only this run, by its name or id; all if not given.")] = "",
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="The peer's folder, as at `potluck join`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show what you gave: rounds that counted your work, tokens, and hours of training, also of runs that are over."""
    from peer.history.history_sums import Span, given_by, history_json, history_text
    from protocol.errors import UsageError

    if by not in _SPANS:
        raise UsageError(f"--by is {by}", " or ".join(_SPANS))
    span, found = Span(by), _histories(state_dir, run)
    sums = given_by(found, span, None)
    typer.echo(json.dumps(history_json(sums, span)) if as_json else "\n".join(history_text(sums, span)))


def _histories(state_dir: Path | None, run: str) -> list[RunHistory]:
    from peer.history.round_log import read_histories
    from peer.history.seen_curve import is_called
    from peer.settings.config import PeerConfig
    from protocol.errors import ConfigError
    from protocol.tables import printable

    folder = PeerConfig.load({"state_dir": state_dir}).state_dir
    found = [each for each in read_histories(folder) if not run or is_called(each, run)]
    if not found:
        of_run = f" of {printable(run)[:80]}" if run else ""
        raise ConfigError(
            f"no history{of_run} in {folder}",
            "a run that this peer trained in",
            "it begins with the peer's first round",
        )
    return found
