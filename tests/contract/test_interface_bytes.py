from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.contract.interface_bytes import CALL_BYTES, FRAME_BYTES, NUM_CALLS, NUM_DOWN, NUM_UP

ROOT = Path(__file__).parents[2]
LIMIT_S = 500
HEADS_SHARE = 0.015
"""Of what is sent: TLS and Noise (0.2%), TCP and IP (66 bytes for each packet, of up to 64 kB here), acknowledgements."""

LIBP2P_BYTES = 150_000
"""The bytes that three peers' libp2p sends meanwhile by itself, and those of opening the streams."""


def test_what_is_counted_is_what_goes_over_the_interface_but_for_heads_and_what_libp2p_says_itself(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.interface_bytes", str(tmp_path)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["kinds"] == ["direct", "libp2p"], "both ways were taken"
    assert reported["counted"] >= 2 * ((NUM_UP + NUM_DOWN) * FRAME_BYTES + 2 * NUM_CALLS * CALL_BYTES)
    assert reported["interface"] > reported["counted"]
    if reported["is_alone"]:  # else others' bytes are on it, too
        assert reported["interface"] < (1 + HEADS_SHARE) * reported["counted"] + LIBP2P_BYTES
