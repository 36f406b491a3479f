"""Ctrl-C once leaves cleanly, twice at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import trio

from peer.settings.exit_codes import INTERRUPTED


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
