"""How the daemon ends: exit codes and signals.

The exit codes of every `potluck` command, each with its cause and what to do. Errors carry theirs (protocol/errors.py).

Ctrl-C once leaves cleanly, twice at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

OK: Final = 0
BUG: Final = 1
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class ExitCode:
    """Why a command ended so, and what its user does about it."""

    cause: str
    cure: str


EXIT_CODES: Final[dict[int, ExitCode]] = {
    OK: ExitCode("done, or left cleanly", "nothing"),
    BUG: ExitCode("a bug of ours, or a promise that the demo did not keep", "report it, with `potluck bugreport`"),
    2: ExitCode("the command line cannot be meant", "see the command's --help"),
    3: ExitCode("a file or flag holds a value that cannot work", "mend the value that the line names"),
    4: ExitCode(
        "this machine lacks something: memory, disk, a free port, a whole and readable file",
        "mend what the line names; `potluck doctor` looks at all of it",
    ),
    5: ExitCode("nobody answered at the addresses given", "see that the other side runs and can be reached"),
    6: ExitCode("refused: invite, credential, ban", "ask the host for another invite"),
    7: ExitCode("another protocol version or schema", "install the release that the host runs"),
    8: ExitCode("the run has ended", "fetch its last checkpoint from the host, or join another run"),
    75: ExitCode("temporary", "the same command again, a little later"),
    INTERRUPTED: ExitCode(
        "interrupted twice, or before it was up: left at once", "nothing; once is enough to leave cleanly"
    ),
}


def exit_code_lines() -> str:
    """The table as text, one code a line, for `potluck --help`."""
    return "\n\n".join(f"{code}: {row.cause}. To do: {row.cure}" for code, row in EXIT_CODES.items())


def exit_code_table() -> str:
    """The table as Markdown, for the README."""
    rows = (f"| {code} | {row.cause} | {row.cure} |" for code, row in EXIT_CODES.items())
    return "\n".join(("| code | cause | what to do |", "|---|---|---|", *rows))


async def watch_signals(
    leave: Callable[[str], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call `leave(reason)` at the first SIGINT or SIGTERM; at the second leave the process with 130.

    The second way out runs nothing: the worker ends by end of file, p2pd by its parent-death signal.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        is_leaving = False
        async for number in signals:
            if is_leaving:
                print("potluck: interrupted again; leaving at once", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
            is_leaving = True
            leave(f"asked to leave by {signal.Signals(number).name}")
