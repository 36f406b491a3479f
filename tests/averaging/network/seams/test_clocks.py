from __future__ import annotations

import math
from functools import partial

from averaging.network.seams.clocks import Timers


def test_timers_come_in_the_order_of_their_times_and_at_one_time_in_that_of_asking() -> None:
    timers, reported = Timers(None, 0.5, lambda: 0.0), list[str]()
    for delay_s, name in ((0.9, "a"), (1.0, "b"), (0.2, "c"), (0.8, "d"), (0.7, "e"), (0.4, "f")):
        timers.after(delay_s, partial(reported.append, name))
    assert timers.next_s() == 0.5
    timers.run_due(0.5)
    assert reported == ["c", "f"]
    timers.run_due(1.0)
    assert reported == ["c", "f", "a", "b", "d", "e"]
    assert timers.next_s() == math.inf


def test_a_cancelled_timer_is_not_called_and_takes_none_of_the_same_time_with_it() -> None:
    timers, reported = Timers(None, 0.5, lambda: 0.0), list[str]()
    first, second, _, alone = (
        timers.after(delay_s, partial(reported.append, name))
        for delay_s, name in ((1.0, "a"), (1.0, "b"), (1.0, "c"), (0.3, "d"))
    )
    first.cancel()
    alone.cancel()
    assert timers.next_s() == 1.0
    timers.after(1.0, second.cancel)
    timers.run_due(1.0)
    assert reported == ["b", "c"]


def test_what_a_timer_asks_for_at_its_own_time_comes_after_all_others_of_that_time() -> None:
    timers, reported = Timers(None, 0.5, lambda: 0.0), list[str]()

    def again() -> None:
        reported.append("a")
        timers.after(1.0, partial(reported.append, "again"))

    timers.after(1.0, again)
    timers.after(1.0, partial(reported.append, "b"))
    timers.run_due(1.0)
    assert reported == ["a", "b", "again"]
