"""Scripted faults at the very step where they hurt most; `python -m tests.simulation --scenario all` runs more seeds of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.collection import SCENARIOS
from tests.simulation.scenario import play

CASES = [(name, seed) for name, told in SCENARIOS.items() for seed in range(told.num_seeds)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What dozens of services log in virtual hours is nobody's to read, and costs as much as they do."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize(("name", "seed"), CASES, ids=[f"{name}-{seed}" for name, seed in CASES])
def test_promises_are_kept(name: str, seed: int) -> None:
    assert play(SCENARIOS[name], seed).error == ""
