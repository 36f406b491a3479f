"""`potluck profile`: a profile of the training of a peer that runs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from averaging.system.output_file import write_output
from protocol.errors import ConfigError, MachineError, TemporaryError
from protocol.tables import examples, printable, several

if TYPE_CHECKING:
    from peer.training.profiling.profile_summary import ProfileSummary

_PANEL: Final = "For volunteers"
_MEMORY_FILE: Final = "memory.svg"
TAKEN_WITHIN_S: Final = 15.0
"""The daemon looks each second."""

DONE_WITHIN_S: Final = 300.0
"""A peer that trains slowly, and the trace that is written after the last step."""

_LOOK_EVERY_S: Final = 0.2


def add_profile_command(app: typer.Typer) -> None:
    """Add `potluck profile`."""
    lines = ("potluck profile --steps 5", "potluck profile --json")
    app.command(rich_help_panel=_PANEL, epilog=examples(*lines))(profile)


def profile(
    steps: Annotated[int, typer.Option(help="Steps to record, 1 to 50.")] = 5,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of a running peer, as at `potluck join`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Record some training steps of the peer that runs here, and say what limits them.

    Writes a trace for ui.perfetto.dev or TensorBoard, and a picture of the
    memory. `potluck status --trace FILE` shows the round around the steps.
    """
    from peer.profile.profile_files import profile_folder, trace_path
    from peer.profile.profile_words import memory_picture, profile_lines
    from peer.settings.config import PeerConfig

    folder = PeerConfig.load({"state_dir": state_dir}).state_dir
    summary = recorded(folder, steps, say=lambda text: typer.echo(text, err=True))
    if summary.problem:
        expected = "a peer that trains, and one recording at a time"
        raise TemporaryError(f"no profile: {summary.problem}", expected, "see: potluck status")
    if as_json:
        typer.echo(summary.model_dump_json())
        return
    picture = profile_folder(folder) / _MEMORY_FILE
    write_output(picture, memory_picture(summary))
    typer.echo("\n".join(profile_lines(summary)))
    trace = (
        f"trace     {trace_path(folder)}" if summary.trace_bytes else "trace     left out: it is too large for a viewer"
    )
    typer.echo(f"{trace}\npicture   {picture}")


def recorded(
    state_dir: Path, num_steps: int, say: Callable[[str], None], wait: Callable[[float], None] = time.sleep
) -> ProfileSummary:
    """Ask the peer of a state folder for a profile and wait for it. Blocks for minutes at most.

    Raises:
        ConfigError: too few or too many steps.
        UnreachableError: no peer runs from there.
        MachineError: it has no training process that can be recorded.
        TemporaryError: it did not answer in time.
        StorageError: its folder cannot be written or read.
    """
    from peer.profile.profile_files import read_summary, withdraw_request, write_request
    from peer.training.profiling.profile_summary import MOST_STEPS

    if not 1 <= num_steps <= MOST_STEPS:
        raise ConfigError(f"--steps {num_steps}", f"1 to {MOST_STEPS}")
    _check_trains(state_dir)
    request = write_request(state_dir, num_steps, time.time())
    say(f"recording {several(num_steps, 'step')} ...")
    waited_s = 0.0
    while waited_s < DONE_WITHIN_S:
        if (summary := read_summary(state_dir, request)) is not None:
            return summary
        wait(_LOOK_EVERY_S)
        waited_s += _LOOK_EVERY_S
        if waited_s >= TAKEN_WITHIN_S and withdraw_request(state_dir):
            raise TemporaryError("the peer did not take the request", "a peer that trains", "see: potluck status")
    raise TemporaryError(
        f"no profile within {DONE_WITHIN_S:.0f} s", "steps that end", "record fewer with --steps; see: potluck status"
    )


def _check_trains(state_dir: Path) -> None:
    """Refuse a peer without a training process, and one whose process computes passes of others."""
    from averaging.host.http_client import get_json, read_status_address

    status = get_json(f"{read_status_address(state_dir)}/status.json")
    if status.get("lane_reason"):
        raise MachineError(
            "a peer of a pipeline run", "one that takes training steps of its own", "see: potluck status --trace"
        )
    if status.get("allowed_share") == 0.0:
        reason = printable(str(status.get("allowed_reason")))
        raise TemporaryError(
            f"this peer is {reason}", "a peer that trains", "`potluck resume` ends a pause of your own"
        )
    if not status.get("worker_state"):
        raise MachineError(
            "this peer has no training process",
            "a peer that trains",
            "a helper only reduces; a joining peer trains later",
        )
