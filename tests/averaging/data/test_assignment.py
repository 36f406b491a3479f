from __future__ import annotations

from collections import Counter

import pytest

from averaging.data.assignment import (
    SourceSpan,
    Windows,
    heldout_starts,
    heldout_windows,
    step_windows,
    window_starts,
)
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


SPANS = (SourceSpan(0, 1_000, 3.0), SourceSpan(1_000, 1_400, 1.0))


def test_one_source_is_read_as_a_run_without_a_mixture() -> None:
    found = step_windows(7, "me", 5, 4, (SourceSpan(0, 999, 2.0),), 17)
    assert found.starts == window_starts(7, "me", 5, 4, 999, 17)
    assert found.sources == (0, 0, 0, 0)
    assert heldout_windows(9, (SourceSpan(0, 999, 2.0),), 17) == heldout_starts(9, 999, 17)


def test_windows_of_a_mixture_stay_within_their_source_and_come_by_its_weight() -> None:
    counts = [0, 0]
    for step in range(200):
        found = step_windows(1, "me", step, 10, SPANS, 17)
        assert found == step_windows(1, "me", step, 10, SPANS, 17)
        for start, source in zip(found.starts, found.sources, strict=True):
            assert SPANS[source].begin <= start <= SPANS[source].stop - 17
            counts[source] += 1
    assert counts == pytest.approx([1_500, 500], abs=60)


def test_the_order_of_a_mixture_is_the_same_in_every_release() -> None:
    assert step_windows(1, "me", 3, 6, SPANS, 17) == Windows(
        starts=(975, 644, 114, 1300, 838, 1116), sources=(0, 0, 0, 1, 0, 1)
    )


def test_held_out_windows_of_a_mixture_come_by_weight_and_every_source_has_one() -> None:
    found = heldout_windows(64, SPANS, 17)
    assert sum(start < 1_000 for start in found) == 48
    assert len(found) == 64
    light = heldout_windows(8, (SPANS[0], SourceSpan(1_000, 1_400, 1e-6)), 17)
    assert sum(start >= 1_000 for start in light) == 1


def test_a_source_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="10 tokens"):
        step_windows(1, "me", 0, 4, (SPANS[0], SourceSpan(1_000, 1_010, 1.0)), 17)
