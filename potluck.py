"""The front door: composes the host's and the volunteer's command lines; every error is one line and an exit code.

Nothing heavy is imported here; each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys

from peer.settings.exit import BUG, INTERRUPTED, OK, exit_code_lines

_LEFT_AT_ONCE = "potluck: interrupted; left at once"

try:
    import errno
    import json
    import tempfile
    import time
    import traceback
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack, suppress
    from pathlib import Path
    from types import ModuleType
    from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO, cast

    import typer

    import coordinator.command_line
    import peer.commands
    from averaging.release import installed_release
    from protocol.errors import ConfigError, MachineError, PotluckError, UnreachableError, UsageError
    from protocol.ids import PROTOCOL_VERSION
    from protocol.screens.daemon_views import DaemonView, PeerOrder
    from protocol.tables import examples, printable, shortened
except KeyboardInterrupt:
    # The longest part of a short command: nothing was done yet, and a traceback would tell nobody anything.
    print(_LEFT_AT_ONCE, file=sys.stderr)
    sys.exit(INTERRUPTED)

if TYPE_CHECKING:
    import structlog

# Failed TLS handshakes of strangers and ports in use would otherwise be printed by grpc's C core; we say them ourselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_CannotBeMeant: Final[type[Exception]] = typer.BadParameter.__bases__[0]
"""click's own UsageError: typer brings a click of its own and gives out only this child of it."""

_FOLLOW_EVERY_S: Final = 0.25
"""How soon `potluck logs -f` shows a new line: at once for a reader, and next to no work."""

_NOBODY_READS: Final = "PacifyFlushWrapper"
"""What typer's click puts around an output whose reader is gone, before it leaves with 1, which is the code of a bug here."""

_OF_THE_MACHINE: Final = frozenset(
    (
        errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE,
        errno.ENOMEM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
    )
)  # fmt: skip
"""What a system refuses for reasons of its own: a name too long, no right, no room. All else is a bug until it is understood."""

_BOTH: Final = "For both"

_LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")

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


_checkpoint_commands = coordinator.command_line.add_commands(app)
peer.commands.add_commands(app)

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="A host's or a peer's folder; both usual ones if not given.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def _found(state_dir: Path | None) -> list[tuple[ModuleType, Path]]:
    """The host and the peer of this machine, those of them that there are: the module that looks at it, and its folder.

    Raises:
        ConfigError: there is neither.
    """
    import coordinator.status.local_view
    import peer.status.local_view

    hosted, joined = coordinator.status.local_view.folder_of(state_dir), peer.status.local_view.folder_of(state_dir)
    both: list[tuple[ModuleType, Path]] = [(coordinator.status.local_view, hosted), (peer.status.local_view, joined)]
    found = [(side, folder) for side, folder in both if side.is_here(folder)]
    if not found:
        none = f"no run is hosted from {hosted} and none was joined from {joined}"
        raise ConfigError(none, "the folder of a host or a peer", "name it with --state-dir")
    return found


def _look(state_dir: Path | None) -> list[DaemonView]:
    """What the host and the peer of this machine say. Raises as `_found`."""
    return [side.look(folder) for side, folder in _found(state_dir)]


def _show(looks: Sequence[DaemonView], lines: Sequence[str]) -> None:
    """Print; then, where no daemon runs, leave with what tells a script so."""
    for line in lines:
        typer.echo(line)
    if not any(look.is_running for look in looks):
        where = " or ".join(look.folder for look in looks)
        raise UnreachableError(f"nothing runs from {where}", "a running daemon", "start it: potluck host, potluck join")


@app.command(rich_help_panel=_BOTH, epilog=examples("potluck status", "potluck status --trace round.json"))
def status(
    state_dir: StateDir = None,
    as_json: AsJson = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what the peer did in its newest round to FILE, a Chrome trace for ui.perfetto.dev.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show how the host and the peer of this machine are doing; exit code 5 where neither runs."""
    from protocol.screens.daemon_views import looks_json, status_text

    if trace is not None:
        import peer.status.local_view
        from peer.status.trace import write_trace

        typer.echo(write_trace(peer.status.local_view.folder_of(state_dir), trace))
        return
    looks = _look(state_dir)
    _show(looks, [json.dumps(looks_json(looks))] if as_json else status_text(looks))


@app.command(rich_help_panel=_BOTH, epilog=examples("potluck peers --sort counted", "potluck peers --json"))
def peers(
    state_dir: StateDir = None,
    sort: Annotated[
        PeerOrder | None, typer.Option("--sort", help="By name, counted tokens or speed; else by peer id.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the peers of the run, as the host or the peer of this machine knows them.

    COUNTED are tokens of theirs in the rounds that are shown, HERE for how long
    the host has heard them without a break.
    """
    from protocol.screens.daemon_views import peers_json, peers_text, sorted_peers

    looks = [look if sort is None else sorted_peers(look, sort) for look in _look(state_dir)]
    _show(looks, [json.dumps(peers_json(looks))] if as_json else peers_text(looks))


@app.command(rich_help_panel=_BOTH, epilog=examples("potluck rounds --last 5"))
def rounds(
    state_dir: StateDir = None,
    last: Annotated[int, typer.Option(min=1, help="How many, the newest ones.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the latest rounds: who took part with what share, what was left out."""
    from protocol.screens.daemon_views import rounds_json, rounds_text

    looks = _look(state_dir)
    _show(looks, [json.dumps(rounds_json(looks, last))] if as_json else rounds_text(looks, last))


@app.command(rich_help_panel=_BOTH, epilog=examples("potluck logs --follow", "potluck logs --lines 200"))
def logs(
    state_dir: StateDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what comes, until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=1_000_000, help="How many to begin with, the newest ones.")
    ] = 50,
) -> None:
    """Show the log of the host and the peer of this machine, running or not."""
    from collections import deque

    from averaging.host.log_file import LOG_FOLDER, LogTail
    from protocol.screens.log_lines import readable

    tails = [(side.LOG_NAME, LogTail(folder / LOG_FOLDER / side.LOG_NAME)) for side, folder in _found(state_dir)]
    with ExitStack() as stack:
        for name, tail in tails:
            stack.callback(tail.close)
            if len(tails) > 1:
                typer.echo(f"{name}:")
            for line in deque(tail.new(), maxlen=lines):
                typer.echo("\n".join(readable(line)))
        with suppress(KeyboardInterrupt):  # the way to end it, and nothing is left half done
            while follow:
                for name, tail in tails:
                    for line in tail.new():
                        typer.echo("\n".join((f"{name}: " if len(tails) > 1 else "") + part for part in readable(line)))
                time.sleep(_FOLLOW_EVERY_S)


def _places(directory: Path | None) -> list[Path]:
    """Where runs may lie: a folder and those right below it; by default what is configured, and what lies beside that by default.

    Raises:
        ConfigError: `directory` is no folder.
    """
    import platformdirs

    import coordinator.status.local_view
    import peer.status.local_view

    if directory is not None and not directory.is_dir():
        raise ConfigError(f"no folder {directory}", "a folder that holds state folders", "mend --dir")
    root = directory or platformdirs.user_state_path("potluck")
    configured = (
        [] if directory else [coordinator.status.local_view.folder_of(None), peer.status.local_view.folder_of(None)]
    )
    below = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return list({path.resolve(): path for path in (root, *below, *configured)}.values())


@app.command(rich_help_panel=_BOTH, epilog=examples("potluck runs", "potluck runs --dir /srv/potluck --json"))
def runs(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Look in this folder and in those right below it; else where runs usually are."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs that this machine hosts or has joined, running or not: name, last round, size on disk."""
    import coordinator.status.local_view
    import peer.status.local_view
    from protocol.screens.daemon_views import runs_json, runs_text

    places = _places(directory)
    hosted = [row for folder in places for row in coordinator.status.local_view.runs(folder)]
    joined = [row for folder in places for row in peer.status.local_view.runs(folder)]
    if not hosted and not joined:
        where = directory or " or ".join(str(path) for path in places)
        raise ConfigError(f"no run in {where}", "a folder of a host or a peer", "name one above it with --dir")
    lines = [json.dumps(runs_json(hosted, joined))] if as_json else runs_text(hosted, joined)
    typer.echo("\n".join(lines))


@_checkpoint_commands.command(
    "merge",
    epilog=examples(
        "potluck checkpoint merge CHECKPOINT_DIR my-model --tune-steps 200",
        "potluck checkpoint merge CHECKPOINT_DIR my-model --without 0 --without 3",
    ),
)
def checkpoint_merge(
    path: Annotated[Path, typer.Argument(metavar="CHECKPOINT_DIR", help="A checkpoint's folder, of an expert run.")],
    target: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="A folder that is not there yet, or empty.")],
    also: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CHECKPOINT_DIR", help="Take experts of this one of the same run, too.", show_default=False
        ),
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="The host's folder; else the one that the checkpoint lies in.")
    ] = None,
    tune_steps: Annotated[
        int,
        typer.Option(min=0, max=100_000, help="Train the routers, and nothing else, for so many steps; 0 leaves it."),
    ] = 40,
    without: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Leave this expert out; may be given several times.", show_default=False),
    ] = None,
) -> None:
    """Verify an expert run's checkpoint and write trunk and experts as one mixture, in Hugging Face's GraniteMoeShared layout."""
    from coordinator.checkpoints.checkpoint_export import ensure_free
    from coordinator.experts.merge_inputs import ExpertSample, read_parts, write_merged
    from peer.models.merging import merge_with_text

    ensure_free(target)
    parts = read_parts([path, *(also or ())])
    left_out = sorted(without or ())
    kept = parts.without(left_out)
    text = ExpertSample(parts, state_dir)
    merged = merge_with_text(parts.decoder, parts.mixture, parts.trunk_N, parts.experts, text, tune_steps, left_out)
    exported = write_merged(kept, merged.tensors, target)
    lacking = (
        f" without experts {', '.join(map(str, parts.missing))}, which were never trained," if parts.missing else ""
    )
    lacking += f" without experts {', '.join(map(str, left_out))}, as asked," if left_out else ""
    size = f"{sum(exported.files.values()) / 1e6:.2f} MB"
    where = f"round {parts.manifest.index} of {printable(parts.manifest.run_name)}, {len(kept.experts)} experts"
    typer.echo(f"verified and merged{lacking} {merged.told}: {where}, {size} to {target}: {', '.join(exported.files)}")
    typer.echo(merged.quality.sentence)


def _looked(side: ModuleType, folder: Path) -> DaemonView:
    """One look; what cannot be looked at, as a damaged ledger, is what a report is about and does not end it."""
    try:
        found: DaemonView = side.look(folder)
    except PotluckError as error:
        return DaemonView(
            side.LOG_NAME.removesuffix(".log"), str(folder), is_running=False, note=error.one_line(), status={}
        )
    return found


@app.command(
    rich_help_panel=_BOTH, epilog=examples("potluck bugreport", "potluck bugreport --out report.zip --keep-addresses")
)
def bugreport(
    state_dir: StateDir = None,
    out: Annotated[Path, typer.Option(help="The zip file to write.")] = Path("potluck-bugreport.zip"),
    keep_addresses: Annotated[
        bool, typer.Option("--keep-addresses", help="Leave IP addresses and host names as they are.")
    ] = False,
) -> None:
    """Write a zip file to go with a bug report: versions, settings, last status, newest logs, names and sizes of files.

    Keys, invites, credentials, tokens and passwords are taken out, and addresses
    of others unless told otherwise.
    """
    from averaging.host import bug_report as gather
    from protocol.identity.redaction import Redactor

    found = _found(state_dir)
    entries = {"machine.json": gather.as_json(gather.machine_facts([folder for _, folder in found]))}
    known = gather.secrets_of_environment()
    for side, folder in found:
        looked = _looked(side, folder)
        known += side.secrets(folder)
        status = {"is_running": looked.is_running, "note": looked.note, "status": looked.status}
        entries |= {
            f"{looked.kind}/status.json": gather.as_json(status),
            f"{looked.kind}/settings.json": gather.as_json(side.settings(folder)),
            f"{looked.kind}/files.txt": gather.layout(folder),
        }
        logs = gather.newest_logs(folder, side.LOG_NAME)
        entries |= {f"{looked.kind}/logs/{name}": text for name, text in logs.items()}
    redactor = Redactor(known, hides_addresses=not keep_addresses, home=str(Path.home()))
    cleaned = gather.cleaned(entries, redactor)
    typer.echo(f"{out} will hold, without secrets{'' if keep_addresses else ' and without addresses of others'}:")
    for name, text in cleaned.items():
        typer.echo(f"  {name}  {len(text):,} letters")
    gather.write_zip(out, cleaned)
    typer.echo(f"wrote {out}; look into it before you send it to anybody")


def _report_bug(error: BaseException) -> None:
    """Keep the traceback in a file and print one line that names it."""
    path = Path(tempfile.gettempdir()) / f"potluck-error-{os.getpid()}.log"
    lines = "".join(traceback.format_exception(error))
    try:
        path.write_text(lines, encoding="utf8")
    except OSError:
        typer.echo(lines, err=True)
    typer.echo(f"potluck: {type(error).__name__}: {error}; this is a bug; please report it with {path}", err=True)


def _of_the_machine(error: OSError) -> MachineError:
    """What the system refused, where no command had a better word for it."""
    place = "" if error.filename is None else f"{shortened(os.fsdecode(error.filename), 200)}: "
    return MachineError(f"{place}{error.strerror}", "a system that allows it", "see: potluck doctor")


def _report_usage(error: Exception) -> int:
    """One line in the place of typer's box; click's errors know the command that did not understand, mostly."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error)  # empty where rich has printed the help already
        return UsageError.exit_code
    message: Callable[[], str] = getattr(error, "format_message", error.__str__)
    context = getattr(error, "ctx", None)
    shown = context.command_path if context is not None else "potluck"
    line = UsageError(message().rstrip("."), f"what `{shown} --help` describes", "mend it and try again").one_line()
    typer.echo(f"potluck: {line}", err=True)
    return UsageError.exit_code


class _Stderr:
    """Standard error of this moment: what is written while a live screen is up appears above it, and does not tear it."""

    def write(self, text: str) -> int:
        """As a file does."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """As a file does."""
        sys.stderr.flush()


def _beside_a_live_screen(render: structlog.typing.Processor) -> structlog.typing.Processor:
    """The same renderer; while a live screen is up, only for what somebody should look at. The log file, filled before, has all."""

    def shown(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.ProcessorReturnValue:
        import structlog
        from rich.file_proxy import FileProxy

        if method in ("debug", "info") and isinstance(sys.stderr, FileProxy):
            raise structlog.DropEvent
        return render(logger, method, event)

    return shown


def _set_up_logging() -> None:
    """Lines on standard error. Tracebacks without local variables: those hold secrets.

    Raises:
        ConfigError: POTLUCK_LOG is no level.
    """
    import structlog

    level = os.environ.get("POTLUCK_LOG", "info").lower()
    if level not in _LOG_LEVELS:
        raise ConfigError(f"POTLUCK_LOG is {level!r}", f"one of {', '.join(_LOG_LEVELS)}", "mend or unset it")

    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )
    # Who asked for a level gets all of it on the screen, too.
    shown = renderer if "POTLUCK_LOG" in os.environ else _beside_a_live_screen(renderer)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), shown],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
    )


def _run() -> int:
    """Run one command; its exit code, one of peer/settings/exit.py."""
    try:
        _set_up_logging()
        code = app(prog_name="potluck", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except SystemExit as left:
        if type(sys.stdout).__name__ == _NOBODY_READS:
            return OK  # `potluck peers | head` has heard enough
        return left.code if isinstance(left.code, int) else OK
    except _CannotBeMeant as error:
        return _report_usage(error)
    except PotluckError as error:
        typer.echo(f"potluck: {error.one_line()}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            _report_bug(error)
            return BUG
        typer.echo(f"potluck: {_of_the_machine(error).one_line()}", err=True)
        return MachineError.exit_code
    except Exception as error:  # noqa: BLE001 - the last edge of the program: keep the traceback, print one line
        _report_bug(error)
        return BUG


def _say_the_rest(code: int) -> int:
    """Write what standard output still holds; the exit code, that of a MachineError where it takes no more."""
    if sys.stdout is None:  # closed before we began
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        # Else Python would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code == OK and not isinstance(error, BrokenPipeError):
            print(f"potluck: standard output takes no more ({error.strerror})", file=sys.stderr)
            return MachineError.exit_code
    return code


def main() -> None:
    """Run one command and leave with its exit code."""
    code = _say_the_rest(_run())
    # A second Ctrl-C while Python takes itself apart would print a traceback or change the code of a clean leave.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if code == INTERRUPTED:
        print(_LEFT_AT_ONCE, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
