from __future__ import annotations

import pytest

from peer.machine.memory_core import MemoryUse, may_double

BEFORE = MemoryUse(family_bytes=1000, own_bytes=400, own_peak_bytes=450)


@pytest.mark.parametrize(
    ("most_bytes", "later_bytes", "peak_bytes", "fits"),
    [
        (1200, 0, 500, True),  # it took 100 and would take 200
        (1199, 0, 500, False),
        (1249, 50, 500, False),
        (1250, 50, 500, True),
        (1000, 0, 400, True),
        (1000, 0, 300, True),  # pages went out meanwhile: nothing was taken
        (999, 0, 400, False),  # the others alone hold more
    ],
)
def test_twice_as_many_sequences_take_twice_what_these_took(
    most_bytes: int, later_bytes: int, peak_bytes: int, fits: bool
) -> None:
    after = MemoryUse(family_bytes=5000, own_bytes=410, own_peak_bytes=peak_bytes)
    assert may_double(most_bytes, later_bytes, BEFORE, after) is fits


@pytest.mark.parametrize(("most_bytes", "fits"), [(1500, True), (1499, False)])
def test_processes_that_search_side_by_side_each_take_as_much(most_bytes: int, fits: bool) -> None:
    after = MemoryUse(family_bytes=5000, own_bytes=410, own_peak_bytes=500)
    assert may_double(most_bytes, 50, BEFORE, after, num_processes=2) is fits
