"""python -m tests.simulation.cases PART PARTS: plays the scripted runs that belong to the tests, every PARTS-th from number PART on,
and prints what went wrong in each as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

import structlog

from tests.simulation.collection import SCENARIOS
from tests.simulation.scenario import play

CASES: Final = [(name, seed) for name, reported in SCENARIOS.items() for seed in range(reported.num_seeds)]


def case_name(name: str, seed: int) -> str:
    """How one case is called."""
    return f"{name}-{seed}"


def main(arguments: Sequence[str]) -> None:
    """Play them and print."""
    part, num_parts = map(int, arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    errors = {case_name(name, seed): play(SCENARIOS[name], seed).error for name, seed in CASES[part::num_parts]}
    print(json.dumps(errors))


if __name__ == "__main__":
    main(sys.argv[1:])
