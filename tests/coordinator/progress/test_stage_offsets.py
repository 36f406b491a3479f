"""A stage that stays behind the first one is told from one that catches up."""

from __future__ import annotations

from coordinator.progress.stage_offsets import SETTLED_ROUNDS, StageOffsets, seen
from protocol.ids import UnitName

STAGE = UnitName("stage-1")


def _after(*looks: tuple[int, int]) -> int:
    """The offset after looks at the first stage and the other one, by their indices."""
    state = StageOffsets()
    for first, other in looks:
        state = seen(state, first, {STAGE: other})
    return state.of(STAGE)


def test_a_stage_that_has_each_round_a_moment_later_is_not_behind() -> None:
    assert _after(*((first, first - late) for first in range(1, 9) for late in (1, 0))) == 0


def test_a_stage_that_was_restored_two_rounds_back_is_two_behind_once_that_has_lasted() -> None:
    looks = [(first, first - 2) for first in range(10, 10 + SETTLED_ROUNDS)]
    assert _after(*looks) == 0
    assert _after(*looks, (10 + SETTLED_ROUNDS, 8 + SETTLED_ROUNDS)) == 2


def test_a_stage_that_catches_up_round_by_round_is_at_most_as_far_behind_as_it_was_nearest() -> None:
    assert _after((10, 6), (11, 8), (12, 10), (13, 12)) == 2
    assert _after((10, 6), (11, 8), (12, 10), (13, 13), (14, 14)) == 0


def test_a_lineage_that_goes_on_from_an_older_round_begins_the_count_anew() -> None:
    assert _after(*((first, first - 1) for first in range(5, 10)), (4, 4)) == 0


def test_a_stage_that_nobody_ever_had_is_not_behind() -> None:
    assert seen(seen(StageOffsets(), 1, {}), 2, {}).of(STAGE) == 0
