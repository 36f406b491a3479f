"""No path takes memory for a state twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from protocol.estimates.estimates import host_memory_bytes
from tests.oracles.state_memory import PATHS, Growth, measured

IN_FLIGHT_BYTES = 12 << 20
"""Chunks, stripes and blocks of files that are in memory at a time, whatever the model. A copy of one vector is far more."""


@pytest.fixture(scope="module")
def growths(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Growth]:
    return measured(tmp_path_factory.mktemp("states") / "folder")


@pytest.mark.parametrize("path", PATHS)
def test_a_path_takes_memory_for_the_state_that_it_returns_and_no_more(
    growths: Mapping[str, Growth], path: str
) -> None:
    found = growths[path]
    # Less than that would mean that nothing was measured. A busy machine misses the moment of the most.
    assert found.expected_bytes // 4 <= found.taken_bytes <= found.expected_bytes + IN_FLIGHT_BYTES


def test_the_dry_run_promises_a_host_what_a_checkpoint_takes_and_at_most_a_quarter_more() -> None:
    promised = (host_memory_bytes(10**9) - host_memory_bytes(0)) / 10**9
    taken = PATHS["keep a checkpoint"].bytes_a_value
    assert taken <= promised <= 1.25 * taken
