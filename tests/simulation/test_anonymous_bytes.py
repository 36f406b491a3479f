from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

NUM_VALUES = 3 << 20
MARGIN_BYTES = 6 << 20
"""Chunks on their way, messages, and the interpreter's own."""

MOST_BYTES_A_VALUE = {
    "rounds": 2 * 17.0,
    "rest": 2 * 16.0,
    "heal": 14.0,
    "join": 9.0,
    "replay": 14.0,
}
"""Of anonymous memory. In rounds and at rest two peers hold their states, 8 bytes each, up to four contributions, 1 each, and the
world's genesis, 4 in all. A peer that replays commits holds its state, a result, and the shift that its trainer takes, 4.
"""


def test_anonymous_memory_of_rounds_healing_joining_and_replay_stays_within_so_many_bytes_a_value(
    tmp_path: Path,
) -> None:
    # large blocks come from the system and go back to it, so that freed memory hides nothing
    thresholds = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-m", "tests.simulation.anonymous_bytes", str(NUM_VALUES), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **thresholds})
    most = {part: num_bytes / NUM_VALUES for part, num_bytes in json.loads(done.stdout).items()}
    margin = MARGIN_BYTES / NUM_VALUES
    too_much = {part: round(found, 1) for part, found in most.items() if found > MOST_BYTES_A_VALUE[part] + margin}
    assert not too_much
