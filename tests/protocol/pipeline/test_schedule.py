"""Orders of work in which no stage waits for ever, and which keep what they promise."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError, LocalProtocolError
from protocol.pipeline.schedule import SCHEDULES, Pass, most_in_flight, passes

GRIDS = [(1, 1), (1, 4), (2, 1), (3, 2), (3, 12), (4, 4)]


def _is_there(work: Pass, stage: int, num_stages: int, done: set[tuple[int, Pass]]) -> bool:
    before, is_own = (stage + 1, stage == num_stages - 1) if work.is_backward else (stage - 1, stage == 0)
    return is_own or (before, work) in done


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("num_stages", "num_micro_batches"), GRIDS)
def test_every_stage_comes_to_the_end_when_each_waits_for_its_neighbours(
    schedule: str, num_stages: int, num_micro_batches: int
) -> None:
    orders = [list(passes(schedule, stage, num_stages, num_micro_batches)) for stage in range(num_stages)]
    done: set[tuple[int, Pass]] = set()
    while any(orders):
        ready = [stage for stage, order in enumerate(orders) if order and _is_there(order[0], stage, num_stages, done)]
        assert ready, f"all stages wait: {orders}"
        for stage in ready:
            done.add((stage, orders[stage].pop(0)))
    assert len(done) == 2 * num_stages * num_micro_batches


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_micro_batches_go_each_way_in_the_order_of_their_numbers_and_forward_first(schedule: str) -> None:
    order = passes(schedule, 1, 3, 7)
    assert [item.number for item in order if not item.is_backward] == list(range(7))
    assert [item.number for item in order if item.is_backward] == list(range(7))
    assert all(order.index(Pass(number, False)) < order.index(Pass(number, True)) for number in range(7))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_no_more_micro_batches_are_kept_than_promised(schedule: str, stage: int) -> None:
    kept = most = 0
    for item in passes(schedule, stage, 3, 8):
        kept += -1 if item.is_backward else 1
        most = max(most, kept)
    assert most == most_in_flight(schedule, stage, 3, 8) == (8 if schedule == "gpipe" else 3 - stage)


def test_an_order_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of gpipe, 1f1b"):
        passes("zero-bubble", 0, 2, 2)


def test_a_stage_that_is_none_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="stage 2 of 2"):
        passes("1f1b", 2, 2, 2)
