"""Scripted faults at the very step where they hurt most; `python -m tests.simulation --scenario all` runs more seeds of them."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.simulation.cases import CASES, case_name

NUM_PROCESSES = 2
NAMES = [case_name(name, seed) for name, seed in CASES]


def _play(part: int) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.simulation.cases", str(part), str(NUM_PROCESSES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.stdout, done.stderr
    errors: dict[str, str] = json.loads(done.stdout)
    return errors


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """What went wrong, by case: they are played side by side."""
    with ThreadPoolExecutor() as pool:
        return {name: error for played in pool.map(_play, range(NUM_PROCESSES)) for name, error in played.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_promises_are_kept(name: str, errors: dict[str, str]) -> None:
    assert errors[name] == ""
