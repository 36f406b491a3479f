"""Fifty seeded swarms in virtual time, in two processes side by side, and the same seed twice."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def _run(start: int, seeds: int) -> tuple[int, dict[int, str], str]:
    command = [sys.executable, "-m", "tests.simulation", "--start", str(start), "--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    traces = {int(seed): trace for seed, trace in re.findall(r"seed (\d+): .* trace (\w+)", done.stdout)}
    return done.returncode, traces, done.stdout + done.stderr


def test_fifty_seeded_swarms_keep_their_promises_and_a_seed_replays_to_the_same_trace() -> None:
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(_run, (0, 24), (26, 26))
    assert first[0] == 0, first[2]
    assert second[0] == 0, second[2]
    assert len({**first[1], **second[1]}) == 50
    assert {seed: first[1][seed] for seed in (24, 25)} == {seed: second[1][seed] for seed in (24, 25)}
