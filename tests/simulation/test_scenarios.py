"""Scripted faults at the very step where they hurt most; `python -m tests.simulation --scenario all` runs more seeds of them."""

from __future__ import annotations

import json

import pytest

from tests.simulation.beside import HASH_SEEDS, Beside, Play
from tests.simulation.cases import CASES, case_name

NAMES = [case_name(name, seed) for name, seed in CASES]
PLAYS = [
    Play("tests.simulation.cases", (str(part), str(len(HASH_SEEDS))), hash_seed)
    for part, hash_seed in enumerate(HASH_SEEDS)
]


@pytest.fixture(scope="module")
def errors(beside: Beside) -> dict[str, str]:
    """The errors, by case; the cases are played side by side."""
    return {name: error for printed in beside.output(*PLAYS) for name, error in json.loads(printed).items()}


@pytest.mark.parametrize("name", NAMES)
def test_promises_are_kept(name: str, errors: dict[str, str]) -> None:
    assert errors[name] == ""
