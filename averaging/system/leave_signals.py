"""The signals that ask a daemon to leave: Ctrl-C once leaves cleanly, twice at once; a closed terminal leaves cleanly."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Final

import trio

_SENDERS: Final[Mapping[int, str]] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "`potluck stop` or the system",
    signal.SIGHUP: "its terminal, which was closed",
}
_INTERRUPTED: Final = 130
"""The exit code of a daemon that was asked twice (peer/settings/exit_codes.py)."""


async def watch_signals(
    leave: Callable[[str], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Call `leave(reason)` at the first SIGINT, SIGTERM or SIGHUP. At a second SIGINT or SIGTERM end the process with 130.

    The second way out runs nothing: the worker ends by end of file, p2pd by its parent-death signal. A SIGHUP counts only as the
    first one, because shells, terminals and service managers send it in addition to another. Under nohup it stays ignored.
    """
    is_kept_running = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    hangup = () if is_kept_running else (signal.SIGHUP,)
    asked: list[int] = []
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *hangup) as signals:
            task_status.started()
            async for number in signals:
                if not asked:
                    leave(f"asked to leave by {_SENDERS[number]}")
                elif number != signal.SIGHUP and any(earlier != signal.SIGHUP for earlier in asked):
                    print("potluck: interrupted again; leaving at once", file=sys.stderr, flush=True)
                    os._exit(_INTERRUPTED)
                asked.append(number)
    finally:
        if asked and hangup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # another one must not change the exit code of a clean end
