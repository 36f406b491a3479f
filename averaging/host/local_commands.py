"""Commands about the daemons of this machine: status, peers, rounds, logs, runs, bugreport."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Annotated, Final

import typer

from averaging.host.daemon_views import DaemonView, LocalDaemon, PeerOrder
from averaging.host.hints import with_folder
from averaging.system.output_file import is_printed, output_name
from averaging.system.questions import is_agreed
from protocol.errors import ConfigError, UnreachableError
from protocol.tables import examples

_FOLLOW_EVERY_S: Final = 0.25
"""Interval at which `potluck logs -f` looks for new lines: at once for a reader, and little work."""

_PANEL: Final = "For both"

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="A host's or a peer's folder; both usual ones if not given.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


class LocalCommands:
    """The commands. `daemons` returns the kinds of daemons, `write_trace` writes a peer's newest round to a file, and `forget_run`
    deletes a run that was joined or is hosted, once its owner has said yes.
    """

    def __init__(
        self,
        daemons: Callable[[], Sequence[LocalDaemon]],
        write_trace: Callable[[Path | None, Path], str],
        forget_run: Callable[[Path | None, str, Callable[[str], bool]], str],
    ) -> None:
        self._daemons = daemons
        self._write_trace = write_trace
        self._forget_run = forget_run

    def add_to(self, app: typer.Typer) -> None:
        """Add the commands to the command line."""
        for command, lines in (
            (self.status, ("potluck status", "potluck status --trace round.json")),
            (self.peers, ("potluck peers --sort counted", "potluck peers --json")),
            (self.rounds, ("potluck rounds --last 5",)),
            (self.logs, ("potluck logs --follow", "potluck logs --lines 200")),
            (self.bugreport, ("potluck bugreport", "potluck bugreport --out report.zip --keep-addresses")),
        ):
            app.command(rich_help_panel=_PANEL, epilog=examples(*lines))(command)
        runs = typer.Typer(invoke_without_command=True)
        runs.callback(epilog=examples("potluck runs", "potluck runs --dir /srv/potluck --json"))(self.list_runs)
        runs.command(epilog=examples("potluck runs forget our-run"))(self.forget)
        app.add_typer(runs, name="runs", rich_help_panel=_PANEL)

    def status(
        self,
        state_dir: StateDir = None,
        as_json: AsJson = False,
        trace: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help="Write what the peer did in its newest round to FILE: a Chrome trace for ui.perfetto.dev, or a picture if it "
                "ends in .svg; - prints the trace.",
                show_default=False,
            ),
        ] = None,
    ) -> None:
        """Show how the host and the peer of this machine are doing; exit code 5 if neither runs, 3 if there is none here."""
        from averaging.host.daemon_views import status_json, status_text

        if trace is not None:
            typer.echo(self._write_trace(state_dir, trace), err=is_printed(trace))
            return
        views = self._look(state_dir)
        _show(views, [json.dumps(status_json(views))] if as_json else status_text(views), is_json=as_json)

    def peers(
        self,
        state_dir: StateDir = None,
        sort: Annotated[
            PeerOrder | None, typer.Option("--sort", help="By name, counted tokens or speed; else by peer id.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """List the peers of the run, as the host or the peer of this machine knows them.

        COUNTED are a peer's tokens: at the host those of the whole run, at a
        peer those of the rounds that its daemon remembers. HERE is the time
        for which the host has heard it without a break. OUT is the part of its
        work that was left out of rounds. Contributors that are away come last.
        """
        from averaging.host.daemon_views import peers_json, peers_text, sorted_peers

        views = [view if sort is None else sorted_peers(view, sort) for view in self._look(state_dir)]
        _show(views, [json.dumps(peers_json(views))] if as_json else peers_text(views), is_json=as_json)

    def rounds(
        self,
        state_dir: StateDir = None,
        last: Annotated[int, typer.Option(min=1, help="How many, the newest ones.")] = 20,
        as_json: AsJson = False,
    ) -> None:
        """List the latest rounds: the members, their shares, and what was left out.

        COVERED is the share of the members' work that arrived. OUT is the number of
        peers whose work is not in the round.
        """
        from averaging.host.daemon_views import columns_of_output, rounds_json, rounds_text

        views = self._look(state_dir)
        text = [json.dumps(rounds_json(views, last))] if as_json else rounds_text(views, last, columns_of_output())
        _show(views, text, is_json=as_json)

    def logs(
        self,
        state_dir: StateDir = None,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what comes, until Ctrl-C.")] = False,
        lines: Annotated[
            int, typer.Option("--lines", "-n", min=0, max=1_000_000, help="How many to begin with, the newest ones.")
        ] = 50,
    ) -> None:
        """Show the log of the host and the peer of this machine, running or not."""
        from averaging.host.log_file import LOG_FOLDER, LogTail, log_files, readable

        paths = {kind.LOG_NAME: folder / LOG_FOLDER / kind.LOG_NAME for kind, folder in self._found(state_dir)}
        if not follow and not any(path.is_file() for last in paths.values() for path in log_files(last)):
            where = " or ".join(str(path) for path in paths.values())
            expected = "a host or a peer that ran; its log begins with its first message"
            raise ConfigError(f"no log at {where} yet", expected, "see: potluck status")
        tails = [(name, LogTail(path)) for name, path in paths.items()]
        with ExitStack() as stack:
            for name, tail in tails:
                stack.callback(tail.close)
                if len(tails) > 1:
                    typer.echo(f"{name}:")
                for line in deque(tail.new(), maxlen=lines):
                    typer.echo(readable(line))
            with suppress(KeyboardInterrupt):  # Ctrl-C is the way to end it
                while follow:
                    for name, tail in tails:
                        for line in tail.new():
                            typer.echo(indent(readable(line), f"{name}: " if len(tails) > 1 else ""))
                    time.sleep(_FOLLOW_EVERY_S)

    def list_runs(
        self,
        context: typer.Context,
        directory: Annotated[
            Path | None,
            typer.Option(
                "--dir",
                "--state-dir",
                help="Look in this folder and in those right below it; else where runs usually are.",
            ),
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """List the runs that this machine hosts or has joined, running or not: name, last round, size on disk."""
        if context.invoked_subcommand is None:
            self.runs(directory, as_json)

    def runs(self, directory: Path | None = None, as_json: bool = False) -> None:
        """Print the list. Raises ConfigError if there is no run."""
        from averaging.host.daemon_views import runs_json, runs_text

        places = self._places(directory)
        hosted, joined = ([row for folder in places for row in kind.runs(folder)] for kind in self._daemons())
        if not hosted and not joined:
            where = directory or " or ".join(str(path) for path in places)
            raise ConfigError(f"no run in {where}", "a folder of a host or a peer", "name one above it with --dir")
        lines = [json.dumps(runs_json(hosted, joined))] if as_json else runs_text(hosted, joined)
        typer.echo("\n".join(lines))

    def forget(
        self,
        run: Annotated[str, typer.Argument(metavar="RUN", help="Its name, or the beginning of its id.")],
        state_dir: Annotated[
            Path | None,
            typer.Option("--state-dir", help="The host's or the peer's folder; both usual ones if not given."),
        ] = None,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ) -> None:
        """Delete a run that was joined, or that is hosted here. Asks first, and never deletes a running one.

        Of a joined run, its state, credential and fetched models. Of a hosted one,
        its checkpoints, invites and keys, too: nobody can host it again.
        """
        typer.echo(self._forget_run(state_dir, run, lambda question: is_agreed(question, yes=yes)))

    def bugreport(
        self,
        state_dir: StateDir = None,
        out: Annotated[Path, typer.Option(help="The zip file to write; - for a pipe.")] = Path("potluck-bugreport.zip"),
        keep_addresses: Annotated[
            bool, typer.Option("--keep-addresses", help="Leave IP addresses and host names as they are.")
        ] = False,
    ) -> None:
        """Write a zip file for a bug report.

        It holds versions, settings, the last status, the newest logs, and names
        and sizes of files.

        Keys, invites, credentials, tokens and passwords are removed. So are
        addresses of others, unless you keep them.
        """
        from averaging.host.bug_report import gathered, write_zip

        entries = gathered(self._found(state_dir), keeps_addresses=keep_addresses)
        say, shown = partial(typer.echo, err=is_printed(out)), output_name(out)
        say(f"{shown} will hold, without secrets{'' if keep_addresses else ' and without addresses of others'}:")
        for name, text in entries.items():
            say(f"  {name}  {len(text):,} letters")
        write_zip(out, entries)
        say(f"wrote it to {shown}; look into it before you send it to anybody")

    def _found(self, state_dir: Path | None) -> list[tuple[LocalDaemon, Path]]:
        """The daemons that have a folder on this machine, each with its folder.

        Raises:
            ConfigError: there is none.
        """
        both = [(kind, kind.folder_of(state_dir)) for kind in self._daemons()]
        found = [(kind, folder) for kind, folder in both if kind.is_here(folder)]
        if not found:
            hosted, joined = (folder for _, folder in both)
            none = f"no run is hosted from {hosted} and none was joined from {joined}"
            remedy = "name its folder with --state-dir; or begin with: potluck join LINE, or potluck host run.toml"
            raise ConfigError(none, "a host or a peer that ran here", remedy)
        return found

    def _look(self, state_dir: Path | None) -> list[DaemonView]:
        """The views of this machine's daemons. Raises as `_found`."""
        return [kind.read_daemon(folder) for kind, folder in self._found(state_dir)]

    def _places(self, directory: Path | None) -> list[Path]:
        """Folders that may hold runs: a folder and those right below it; by default the usual ones and the configured ones.

        Raises:
            ConfigError: `directory` is no folder.
        """
        from averaging.system.usual_folders import state_root

        if directory is not None and not directory.is_dir():
            raise ConfigError(f"no folder {directory}", "a folder that holds state folders", "mend --dir")
        root = directory or state_root("--dir")
        configured = [] if directory else [kind.folder_of(None) for kind in self._daemons()]
        below = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        return list({path.resolve(): path for path in (root, *below, *configured)}.values())


def _show(views: Sequence[DaemonView], lines: Sequence[str], *, is_json: bool) -> None:
    """Print the lines; then, if no daemon runs, raise the error whose exit code tells a script. Nothing is told twice."""
    for line in lines:
        typer.echo(line if is_json else with_folder(line))
    if any(view.is_running for view in views):
        return
    raise UnreachableError("; ".join(view.note for view in views))
