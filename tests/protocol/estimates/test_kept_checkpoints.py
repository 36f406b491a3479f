from __future__ import annotations

from itertools import accumulate, pairwise

from protocol.estimates.kept_checkpoints import KeptCheckpoints, kept_checkpoints, most_lasting, spacing


def num_spans(newest: int) -> int:
    num = interval = 0
    while interval <= newest:
        span = spacing(interval, newest)
        num, interval = num + 1, (interval // span + 1) * span
    return num


def test_the_newest_intervals_have_one_each_and_each_doubling_of_the_age_halves_them() -> None:
    assert [spacing(100 - age, 100) for age in (0, 7, 8, 9, 10, 13, 20, 40, 80)] == [1, 1, 1, 2, 2, 2, 4, 8, 16]
    assert [spacing(interval, 7) for interval in range(8)] == [1] * 8


def test_spans_never_overlap_and_only_become_one() -> None:
    for newest in range(300):
        for interval in range(newest + 1):
            span = spacing(interval, newest)
            first = interval // span * span
            assert {spacing(each, newest) for each in range(first, first + span)} == {span}
            assert spacing(interval, newest + 1) in (span, 2 * span)


def test_the_most_that_last_are_those_that_last_at_the_worst_time() -> None:
    assert [most_lasting(newest) for newest in range(2100)] == list(accumulate(map(num_spans, range(2100)), max))


def test_old_checkpoints_grow_with_the_logarithm_of_the_rounds() -> None:
    numbers = [kept_checkpoints(n, every_rounds=5, keep=3, keep_every=10).old for n in (50_000, 500_000, 5_000_000)]
    assert numbers[0] < 45
    assert all(newer - older < 18 for older, newer in pairwise(numbers))


def test_a_young_run_has_no_more_than_were_written_and_one_without_intervals_no_old_ones() -> None:
    assert kept_checkpoints(1, every_rounds=5, keep=3, keep_every=10) == KeptCheckpoints(1, 0)
    assert kept_checkpoints(1000, every_rounds=5, keep=3, keep_every=0) == KeptCheckpoints(4, 0)
