"""`potluck join --detach`: the same command in a session of its own, which a closed terminal does not reach."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from averaging.host.hints import with_folder
from averaging.host.http_client import get_json, read_status_address
from averaging.host.log_file import LOG_FOLDER
from peer.owner.running_peer import refuse_second_peer, running_peer
from protocol.errors import ConfigError, MachineError, StorageError, UnreachableError
from protocol.tables import printable

OUTPUT_FILE: Final = "detached.out"
"""In the log folder: the command's own output since its last start."""

JOINED_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.1
_TOLD_LINES: Final = 5
_TOLD_BYTES: Final = 4000


def own_command() -> list[str]:
    """The command line that starts this program again: the interpreter and the script, never a module of the current folder."""
    return [sys.executable, os.path.abspath(sys.argv[0])]


def detached_arguments(arguments: Sequence[str], pieces: Sequence[str] = ()) -> list[str]:
    """The arguments of this command for the process in the background, which prints lines and detaches nothing. It reads the invite,
    these `pieces` of the arguments, from its standard input: arguments are seen by every user of the machine.
    """
    kept = [argument for argument in arguments if argument != "--detach" and argument not in pieces]
    return [*kept, "-"] if pieces else kept


def join_detached(
    state_dir: Path,
    command: Sequence[str] | None = None,
    *,
    line: str = "",
    pieces: Sequence[str] = (),
    is_in: Callable[[Path, int], bool] | None = None,
) -> list[str]:
    """Start this command again in the background, and wait until its host has let it in. Returns lines for the owner. Blocks.

    Args:
        command: the program to start instead of this command line.
        line, pieces: the invite, and the arguments that it was given in.
        is_in: whether the peer of that process takes part in its run.

    Raises:
        MachineError: a peer runs already, or the process ended at once; with its last lines.
        StorageError: its output cannot be written.
    """
    refuse_second_peer(state_dir)
    output = state_dir / LOG_FOLDER / OUTPUT_FILE
    arguments = command or [*own_command(), *detached_arguments(sys.argv[1:], pieces)]
    try:
        output.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise StorageError(f"{output} cannot be written ({error.strerror})", "a writable state folder") from error
    with os.fdopen(descriptor, "wb") as file:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "POTLUCK_PEER_SCREEN": "plain"}
        source = subprocess.PIPE if line else subprocess.DEVNULL
        process = subprocess.Popen(
            arguments, stdin=source, stdout=file, stderr=file, start_new_session=True, env=environment
        )
        if process.stdin is not None:
            with suppress(BrokenPipeError), process.stdin as given:  # its exit code tells more
                given.write(line.encode() + b"\n")
    has_joined = _wait(process, output, state_dir, is_in or _is_in)
    process.returncode = 0  # it outlives this command, which is no mistake to warn of
    return [
        f"the peer runs in the background, as process {process.pid}{'' if has_joined else ', and is still joining'}",
        with_folder("see it:  potluck status, potluck logs -f"),
        with_folder("stop it: potluck stop"),
        f"output:  {output}",
    ]


def _is_in(state_dir: Path, pid: int) -> bool:
    running = running_peer(state_dir)
    if running is None or running.pid != pid:
        return False
    try:
        return get_json(f"{read_status_address(state_dir)}/status.json").get("state") != "joining"
    except (UnreachableError, ConfigError, StorageError):
        return False  # its page is not up yet


def _wait(process: subprocess.Popen[bytes], output: Path, state_dir: Path, is_in: Callable[[Path, int], bool]) -> bool:
    """Whether the peer joined within JOINED_WITHIN_S. One that waits longer, as for a host that is away, goes on."""
    until_s = time.monotonic() + JOINED_WITHIN_S
    while not is_in(state_dir, process.pid):
        code = process.poll()
        if code is not None:
            raise MachineError(
                f"the peer ended with exit code {code}: {_last_lines(output)}", "a peer that goes on", f"see {output}"
            )
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_S)
    return True


def _last_lines(output: Path) -> str:
    try:
        text = output.read_bytes()[-_TOLD_BYTES:].decode("utf8", "replace")
    except OSError:
        return "its output cannot be read"
    return printable(" / ".join(text.split("\n")[-_TOLD_LINES - 1 :]).strip(" /")) or "it said nothing"
