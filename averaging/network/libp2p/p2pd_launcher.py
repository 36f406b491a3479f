"""Starts p2pd so that it dies with us: run as a script, `python -I -S p2pd_launcher.py PARENT_PID PROGRAM ARGS...`.

On Linux the launcher asks for a parent-death signal and becomes p2pd. Elsewhere it waits for the end of its standard input, which
the parent keeps open, and then kills p2pd. It imports nothing of Potluck, because it must start in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1


def _become(parent_pid: int, command: list[str]) -> None:
    """Replace this process; the kernel sends SIGKILL when the parent's starting thread ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit(1)  # the parent died before the signal was set
    os.execv(command[0], command)


def _watch(command: list[str]) -> int:
    """Keep p2pd as a child and kill it when our standard input ends."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        child.kill()

    threading.Thread(target=wait_for_end, daemon=True).start()
    return child.wait()


def main(arguments: list[str]) -> int:
    """The script's entry: `arguments` are the parent's pid and the command."""
    parent_pid, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        _become(parent_pid, command)
    return _watch(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
