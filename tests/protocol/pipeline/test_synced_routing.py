"""Work goes to who is through with it first, and to nobody who would still be at it when all else is done."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.pipeline.synced_routing import Replica, SyncedConfig, Work, chosen, patience_s, rest_s
from tests.protocol.pipeline.synced_world import Faults, SyncedWorld

CONFIG = SyncedConfig(num_stages=1, num_micro_batches=8, in_flight=8, queue=2)


def replica(name: str, work_s: float | None, num_asked: int = 0) -> Replica:
    asked = {Work(number, 0, True): 0.0 for number in range(num_asked)}
    return Replica(PeerId(name), 0, asked=MappingProxyType(asked), work_s=work_s)


def test_the_replica_that_is_through_first_is_asked() -> None:
    slow, fast = replica("slow", 0.4), replica("fast", 0.1, 1)
    assert chosen(CONFIG, [slow, fast], [], 9.0, "") == fast


def test_with_much_left_to_do_who_is_slow_gets_work_where_who_is_fast_has_no_place() -> None:
    slow, fast = replica("slow", 0.4), replica("fast", 0.1, 2)
    assert chosen(CONFIG, [slow, fast], [], 9.0, "") == slow


def test_with_little_left_work_waits_for_who_is_fast_instead_of_going_to_who_is_slow() -> None:
    slow, fast = replica("slow", 0.4), replica("fast", 0.1, 2)
    assert chosen(CONFIG, [slow, fast], [], 0.35, "") is None
    assert chosen(CONFIG, [slow, replica("fast", 0.1, 1)], [], 0.35, "") == replica("fast", 0.1, 1)


def test_work_that_is_late_is_asked_of_others_and_of_the_same_one_where_there_is_no_other() -> None:
    late, other = replica("late", 0.1, 2), replica("other", 0.5)
    assert chosen(CONFIG, [late, other], [late], 0.0, "") == other
    assert chosen(CONFIG, [late], [late], 0.0, "") == late
    assert chosen(CONFIG, [], [], 9.0, "") is None


def test_who_has_shown_nothing_is_taken_for_as_fast_as_the_fastest() -> None:
    new, slow = replica("new", None), replica("slow", 0.1)
    drawn = [chosen(CONFIG, [new, slow], [], 9.0, str(seed)) for seed in range(20)]
    assert new in drawn
    assert slow in drawn
    assert rest_s(CONFIG, [new, slow], 10) == pytest.approx(0.5)


def test_who_was_asked_nothing_is_taken_for_faster_in_the_next_step() -> None:
    assert replica("slow", 0.4).shown_s == pytest.approx(0.2)
    assert replace(replica("slow", 0.4), was_asked=True).shown_s == 0.4
    assert replica("new", None).shown_s is None


def test_what_is_left_takes_as_long_as_all_replicas_together_need() -> None:
    assert rest_s(CONFIG, [replica("a", 0.1), replica("b", 0.2), replica("c", 0.2)], 10) == pytest.approx(0.5)
    assert rest_s(CONFIG, [], 10) == 0.0


def test_patience_grows_with_what_a_replica_has_to_do() -> None:
    assert patience_s(CONFIG, replica("a", 0.1, 2)) == pytest.approx(0.6)
    assert patience_s(CONFIG, replica("a", 0.001, 1)) == CONFIG.least_patience_s
    assert patience_s(CONFIG, replica("a", None, 1)) == 3.0


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_replicas_of_unequal_speed_are_done_together(seed: int) -> None:
    config = SyncedConfig(num_stages=1, num_micro_batches=100, in_flight=24, queue=8)
    world = SyncedWorld(config, 3, Faults(), seed=seed, speeds=(1.0, 2.0, 4.0))
    world.run()
    assert world.now_s < 0.1 * 100 / 7 / 0.85
