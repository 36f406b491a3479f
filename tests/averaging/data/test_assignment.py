from __future__ import annotations

from collections import Counter

import pytest

from averaging.data.assignment import heldout_starts, window_starts
from protocol.errors import ConfigError


def test_windows_are_a_function_of_seed_peer_and_step() -> None:
    first = window_starts(1, "peer", 5, 8, 1000, 129)
    assert first == window_starts(1, "peer", 5, 8, 1000, 129)
    others = [window_starts(2, "peer", 5, 8, 1000, 129), window_starts(1, "reep", 5, 8, 1000, 129)]
    others.append(window_starts(1, "peer", 6, 8, 1000, 129))
    assert all(first != other for other in others)


def test_every_start_is_reached_and_none_beyond_the_end() -> None:
    counts = Counter(start for step in range(400) for start in window_starts(1, "p", step, 8, 40, 31))
    assert set(counts) == set(range(10))
    assert max(counts.values()) < 2 * min(counts.values())


def test_a_window_as_long_as_the_data_begins_at_its_start_and_a_longer_one_is_refused() -> None:
    assert set(window_starts(1, "p", 0, 4, 31, 31)) == {0}
    with pytest.raises(ConfigError, match="at least a window"):
        window_starts(1, "p", 0, 4, 30, 31)


def test_evaluation_windows_are_fixed_and_spread_from_end_to_end() -> None:
    starts = heldout_starts(5, 1000, 100)
    assert starts == heldout_starts(5, 1000, 100)
    assert (starts[0], starts[-1]) == (0, 900)


def test_a_held_out_part_shorter_than_a_window_is_refused() -> None:
    assert heldout_starts(3, 100, 100) == (0, 0, 0)
    with pytest.raises(ConfigError, match="99 held-out tokens"):
        heldout_starts(3, 99, 100)
