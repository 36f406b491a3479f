"""The front door: composes the host's and the volunteer's command lines. Every error is one line and an exit code.

Imports nothing heavy; each command imports its own needs when it runs.
"""

from __future__ import annotations

import io
import os
import signal
import sys

from averaging.system.installation import broken_package, unsuited_system
from peer.settings.exit_codes import BUG, INTERRUPTED, MACHINE, OK, exit_code_lines

_LEFT_AT_ONCE = "potluck: interrupted; left at once"


def _end_unable(problem: str) -> None:
    """Leave with one line if there is a problem that no command can work with."""
    if problem:
        print(f"potluck: {problem}", file=sys.stderr)
        sys.exit(MACHINE)


_end_unable(unsuited_system(sys.platform, sys.version_info[:2]))
try:
    from averaging.system.hangup import GOODBYES, ending_as_ctrl_c_does, outlive_the_terminal

    with ending_as_ctrl_c_does():
        from collections.abc import Callable, Sequence
        from pathlib import Path
        from typing import TYPE_CHECKING, Annotated, Final

        import typer

        import coordinator.command_line
        import peer.commands
        import peer.history.history_commands
        import peer.installed.installed_commands
        from averaging.curves.curve_commands import add_curve_commands
        from averaging.host.command_errors import (
            refused_by_the_machine,
            report,
            report_bug,
            report_missing,
            report_usage,
        )
        from averaging.host.help_texts import keep_help_texts
        from averaging.host.local_commands import LocalCommands
        from averaging.host.stderr_log import log_to_stderr
        from averaging.release import installed_release
        from averaging.system.machine_limits import keep_threads_to_cores
        from protocol.errors import ConfigError, MachineError, PotluckError
        from protocol.ids import PROTOCOL_VERSION
except KeyboardInterrupt:
    # Imports are the longest part of a short command. Nothing was done yet, so a traceback would not help.
    print(_LEFT_AT_ONCE, file=sys.stderr)
    sys.exit(INTERRUPTED)
except ImportError as error:
    _end_unable(broken_package(error))
    raise

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from averaging.curves.curve import CurveSource
    from averaging.host.daemon_views import LocalDaemon
    from averaging.state.run_model import PeerModels
    from coordinator.experts.merge_inputs import MergeModels
    from peer.installed.installed_commands import HostHere
    from peer.service_commands import LocalHost

# Otherwise grpc's C core prints failed TLS handshakes of strangers and ports in use. We report those ourselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_CannotBeMeant: Final[type[Exception]] = typer.BadParameter.__bases__[0]
"""Click's own UsageError. typer bundles a click of its own and exports only this child of it."""

_NOBODY_READS: Final = "PacifyFlushWrapper"
"""The wrapper that typer's click puts around an output without a reader before it exits with 1. Here 1 means a bug. A click beside
typer has an underscore before its name.
"""

app = typer.Typer(
    help="Train one model on many people's GPUs.",
    epilog="Exit codes\n\n" + exit_code_lines(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"potluck {installed_release()} (protocol {PROTOCOL_VERSION})")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def _daemons() -> Sequence[LocalDaemon]:
    """The host and the peer, which do not know each other."""
    import coordinator.status.local_view
    import peer.status.local_view

    return coordinator.status.local_view, peer.status.local_view


def _write_trace(state_dir: Path | None, file: Path) -> str:
    import peer.status.local_view
    from peer.status.tracing.trace import write_trace

    return write_trace(peer.status.local_view.folder_of(state_dir), file)


def _forget_run(state_dir: Path | None, run: str, confirm: Callable[[str], bool]) -> str:
    """Delete a run that is hosted here or was joined from here. Raises ConfigError where it is both: the user names the folder."""
    from coordinator.run.forget_hosted import forget_hosted, is_hosted
    from peer.membership.forget_run import forget_run, is_joined

    hosted, joined = (kind.folder_of(state_dir) for kind in _daemons())
    if not is_hosted(hosted, run):
        return forget_run(joined, run, confirm)
    if is_joined(joined, run):
        raise ConfigError(
            f"{run} is hosted from {hosted} and was joined from {joined}", "one of the two", "name one with --state-dir"
        )
    return forget_hosted(hosted, run, confirm)


def _merge_models() -> MergeModels:
    """The peers' model, for the host's `potluck checkpoint merge`."""
    from peer.models.merging import merge_with_text

    return merge_with_text


def _peer_models() -> PeerModels:
    """The peer's ways to a model, for the host's `potluck checkpoint` commands."""
    import peer.session.local_models

    return peer.session.local_models


def _open_checkpoint(name: str, state_dir: Path | None) -> AbstractContextManager[Path]:
    """The checkpoint that a command means, for the peer's `potluck generate`."""
    from coordinator.run.named_checkpoint import opened_checkpoint

    return opened_checkpoint(name, _peer_models(), state_dir)


def _curve_sources() -> Sequence[CurveSource]:
    """The daemons that keep curves, the one that knows more first."""
    import coordinator.status.ledger_curve
    import peer.history.seen_curve

    return coordinator.status.ledger_curve, peer.history.seen_curve


def _host_here() -> HostHere:
    """The host's files on this machine, for `potluck where` and `potluck uninstall`."""
    import coordinator.status.hosted_places

    return coordinator.status.hosted_places


def _local_host() -> LocalHost:
    """The host of this machine, for the peer's `potluck stop`."""
    import coordinator.run.hosted_folder

    return coordinator.run.hosted_folder


coordinator.command_line.add_commands(app, _merge_models, _peer_models)
peer.commands.add_commands(app, _open_checkpoint, _local_host)
peer.installed.installed_commands.add_installed_commands(app, _host_here)
peer.history.history_commands.add_history_command(app)
add_curve_commands(app, _curve_sources)
local_commands = LocalCommands(_daemons, _write_trace, _forget_run)
local_commands.add_to(app)
keep_help_texts(app)


def _run() -> int:
    """Run one command. Returns its exit code, one of peer/settings/exit_codes.py."""
    try:
        log_to_stderr()
        code = app(prog_name="potluck", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except SystemExit as left:
        if type(sys.stdout).__name__.lstrip("_") == _NOBODY_READS:
            return OK  # the reader of `potluck peers | head` has closed the pipe
        return left.code if isinstance(left.code, int) else OK
    except _CannotBeMeant as error:
        return report_usage(error)
    except PotluckError as error:
        return report(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except ImportError as error:
        return report_missing(error)
    except Exception as error:  # noqa: BLE001 - the last edge of the program: keep the traceback, print one line
        refused = refused_by_the_machine(error) if isinstance(error, OSError) else None
        if refused is not None:
            return report(refused)
        report_bug(error)
        return BUG


def _say_the_rest(code: int) -> int:
    """Flush standard output. Returns the exit code, or a MachineError's if the output fails."""
    if sys.stdout is None:  # closed before the start
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        # Otherwise Python would try again at its end, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code == OK and not isinstance(error, BrokenPipeError):
            print(f"potluck: standard output takes no more ({error.strerror})", file=sys.stderr)
            return MachineError.exit_code
    return code


def _escape_what_is_no_text() -> None:
    """Names of files may be bytes that are no text: show them as escapes, where Python would refuse to print them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run one command and exit with its code."""
    _escape_what_is_no_text()
    outlive_the_terminal()
    keep_threads_to_cores()
    with ending_as_ctrl_c_does():
        code = _say_the_rest(_run())
        # During Python's shutdown a second one would print a traceback or change the exit code.
        for number in (signal.SIGINT, *GOODBYES):
            signal.signal(number, signal.SIG_IGN)
    if code == INTERRUPTED:
        print(_LEFT_AT_ONCE, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
