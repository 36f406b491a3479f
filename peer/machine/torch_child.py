"""Asks torch in a process of its own: its import takes seconds, and a lost card may end or stop the process."""

from __future__ import annotations

import subprocess

from averaging.system.child_python import CHILD_FOLDER, child_environment, python_command
from peer.machine.rocm import rocm_environment


def ask_torch(program: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a Python program with this Potluck on its path, and collect all that it prints. Blocks.

    Raises:
        subprocess.TimeoutExpired: no answer within `limit_s`; the process is ended. OSError: it cannot be started.
    """
    return subprocess.run(
        python_command("-c", program),
        stdin=subprocess.DEVNULL,
        env={**child_environment(), **rocm_environment()},
        cwd=CHILD_FOLDER,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )
