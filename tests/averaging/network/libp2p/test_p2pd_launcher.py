from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import trio

from averaging.network.libp2p import p2pd_launcher

LAUNCHER = p2pd_launcher.__file__
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), "/bin/sleep", "60"])
print(child.pid, flush=True)
signal.pause()
"""


async def _wait_gone(pid: int) -> None:
    with trio.fail_after(60):
        while _is_there(pid):
            await trio.sleep(0.01)


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_kill_9_of_the_parent_takes_the_program_along() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, LAUNCHER], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert _is_there(child)
        os.kill(parent.pid, signal.SIGKILL)
    await _wait_gone(child)


async def test_a_launcher_whose_parent_is_gone_starts_nothing() -> None:
    done = await trio.run_process(
        [sys.executable, "-I", "-S", LAUNCHER, "1", "/bin/echo", "started"], check=False, capture_stdout=True
    )
    assert done.stdout == b""
    assert done.returncode == 1


async def test_where_there_is_no_signal_the_end_of_standard_input_ends_the_program() -> None:
    script = f"import runpy, sys; m = runpy.run_path({LAUNCHER!r}); sys.exit(m['_watch'](['/bin/sleep', '60']))"
    watcher = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    assert watcher.stdin is not None
    watcher.stdin.close()
    with trio.fail_after(60):
        status = await trio.to_thread.run_sync(watcher.wait)
    assert status != 0
