"""The processes of a benchmark's staging, forked off one that has imported what they need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from tests.benchmarks.points import DOOMED_PEER
from tests.benchmarks.processes import Children
from tests.forked import Forked

POTLUCK = "potluck"
BEFORE = {POTLUCK: "", DOOMED_PEER: "from tests.benchmarks.doomed_peer import doom; doom()"}
"""By module: what makes of the real program the one that is asked for."""


class ForkedChildren(Children):
    """Starts `python -m potluck ...`, and the peer that kills itself; others it does not know."""

    def __init__(self, log_dir: Path, forked: Forked) -> None:
        super().__init__(log_dir)
        self._forked = forked

    def started(self, command: Sequence[str], environment: Mapping[str, str], log_fd: int) -> subprocess.Popen[bytes]:
        """As `Children.started`."""
        python, _, module, *arguments = command
        assert python == sys.executable, command
        process = self._forked.start(arguments, Path.cwd(), environment, log_fd, log_fd, BEFORE[module])
        return cast("subprocess.Popen[bytes]", process)
