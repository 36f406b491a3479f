"""Which process runs which tests, where pytest-xdist runs them in several (`make test`; `pytest` alone runs all in one).

The files of one lane run in one process, one after another: two swarms of real processes at once would be too much for two cores.
That lane is the longest, so it begins first. Simulated worlds are played beside it (tests/simulation/conftest.py) and asked for at its
end. Every other file is a lane of its own, so that what its tests share is made once; long ones are not left for the end, when the
other process may have nothing to do any more.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

SWARMS: Final = "swarms"
_E2E: Final = ("demo", "faults", "bad_input", "membership", "host_away", "everybody_killed", "whole_run")
_PLAYED_BESIDE: Final = ("owed", "swarms", "scenarios", "liars")
_SWARM_FILES: Final = (
    *(f"tests/e2e/test_{name}.py" for name in _E2E),
    *(f"tests/simulation/test_{name}.py" for name in _PLAYED_BESIDE),
)
_LONG = (
    "tests/test_front_door.py",
    "tests/contract/test_network_contract.py",
    "tests/simulation/test_crossing_ballots.py",
)


def lane_of(nodeid: str) -> str:
    """The lane in which a test's file runs: SWARMS, or the file alone."""
    file = nodeid.partition("::")[0]
    return SWARMS if file in _SWARM_FILES else file


def put_longest_first(items: list[pytest.Item]) -> None:
    """The swarms in their order, then the long ones, then everything else in its own."""
    place = {file: number for number, file in enumerate((*_SWARM_FILES, *_LONG))}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


class Lanes(LoadScopeScheduling):
    """Gives each process that is free the next lane, in the order of the collected tests."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)  # type: ignore[arg-type]

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)
