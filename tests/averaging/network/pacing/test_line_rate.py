from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import pytest

from averaging.network.pacing.line_rate import (
    SETTINGS,
    LineRate,
    PathStats,
)

TICK_S = 0.01
LOOK_TICKS = 5
MOST_QUEUE_S = 0.2


@dataclass
class Line:
    """A line with a queue of 0.2 s before it, over which some streams send as fast as they may, and what they fill beside us."""

    carries: Callable[[float], float]
    num_streams: int = 3
    best_rtt_s: float = 0.002
    foreign_s: float = 0.0
    no_room: float = 0.0
    """For what share of the time receivers have none."""

    thin: dict[int, float] = field(default_factory=dict)
    """Most that the receiver of a stream takes, bytes a second."""

    now_s: float = 0.0
    queue_bytes: float = 0.0
    longest_s: float = 0.0
    carried_bytes: float = 0.0
    parts: dict[object, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._acked = [0.0] * self.num_streams
        self._rtt_s = [self.best_rtt_s] * self.num_streams

    def run(self, line_rate: LineRate, until_s: float) -> float:
        """The share of the line that was used since the last call."""
        began_s, before, could = self.now_s, self.carried_bytes, 0.0
        self.longest_s = 0.0
        for tick in range(1, round((until_s - began_s) / TICK_S) + 1):
            carries = self.carries(self.now_s)
            could += carries * TICK_S
            self._move(carries)
            if tick % LOOK_TICKS == 0:
                self.parts = line_rate.update(self._looks(), self.now_s)
        return (self.carried_bytes - before) / could

    def _move(self, carries: float) -> None:
        most = 1.2 * carries  # what the kernel pushes into a line that it does not know
        want = [min(self.parts.get(n, inf), self.thin.get(n, inf), most) for n in range(self.num_streams)]
        self.queue_bytes = min(max(0.0, self.queue_bytes + (sum(want) - carries) * TICK_S), MOST_QUEUE_S * carries)
        share = min(1.0, carries / sum(want))
        for n, each in enumerate(want):
            moved = each * share * TICK_S
            self._acked[n] += moved
            self.carried_bytes += moved
            own_s = 0.1 if n in self.thin else 0.0  # at its receiver
            rtt_s = self.best_rtt_s + self.queue_bytes / carries + self.foreign_s + own_s
            self._rtt_s[n] += (rtt_s - self._rtt_s[n]) / 2
        self.longest_s = max(self.longest_s, self.queue_bytes / carries)
        self.now_s += TICK_S

    def _looks(self) -> dict[object, PathStats]:
        pairs = zip(self._acked, self._rtt_s, strict=True)
        return {
            n: PathStats(int(acked), 100_000, False, rtt_s, self.best_rtt_s, no_room_s=self.no_room * self.now_s)
            for n, (acked, rtt_s) in enumerate(pairs)
        }


@pytest.mark.parametrize(
    ("bytes_per_s", "best_rtt_s"), [(50e6, 0.001), (12e6, 0.002), (12e6, 0.2), (1.2e6, 0.04), (0.5e6, 0.4)]
)
def test_a_line_is_used_whole_and_its_queue_stays_short_whatever_it_carries_and_however_long_it_is(
    bytes_per_s: float, best_rtt_s: float
) -> None:
    line_rate, line = LineRate(), Line(lambda _: bytes_per_s, best_rtt_s=best_rtt_s)
    assert line.run(line_rate, 15.0 + 40 * best_rtt_s) > 0.9
    assert line.run(line_rate, 90.0) > 0.95
    assert line.longest_s < 0.05 + 0.5 * best_rtt_s
    assert sum(line.parts.values()) == pytest.approx(line_rate.bytes_per_s)
    assert len(set(line.parts.values())) == 1


def test_a_line_that_gets_slower_or_faster_is_followed_within_seconds() -> None:
    line_rate, line = LineRate(), Line(lambda now_s: 4e6 if 20.0 < now_s < 60.0 else 12e6)
    line.run(line_rate, 26.0)
    assert line.run(line_rate, 59.0) > 0.93
    assert line.longest_s < 0.04
    line.run(line_rate, 66.0)
    assert line.run(line_rate, 90.0) > 0.93


def test_a_first_guess_that_was_far_too_low_is_left_within_three_seconds() -> None:
    line_rate = LineRate()
    line_rate.bytes_per_s = 4e6
    line = Line(lambda _: 12e6)
    line.run(line_rate, 3.0)
    assert line.run(line_rate, 10.0) > 0.95


def test_the_first_guess_is_not_made_of_a_moment_in_which_the_processor_was_short() -> None:
    """Everything stands still for two windows, which looks like a queue."""
    line_rate, acked, now_s = LineRate(), 0.0, 0.0
    for carries, rtt_s, seconds in ((1.2e7, 0.002, 1.0), (5e5, 0.06, 0.45)):
        for _ in range(round(seconds / 0.05)):
            now_s, acked = now_s + 0.05, acked + carries * 0.05
            line_rate.update({"a": PathStats(int(acked), 100_000, False, rtt_s, 0.002)}, now_s)
    assert line_rate.bytes_per_s == pytest.approx(SETTINGS.first_room * 1.2e7, rel=0.01), (
        "no less than was carried before"
    )


def test_what_an_unpaced_line_carries_leaves_room_once_a_queue_was_seen_for_most_of_a_window_though_it_is_gone_by_its_end() -> (
    None
):
    """BBR, which took a burst for the line's pace, fills its queue for a third of a second each time: of that nothing was learned."""
    line_rate, acked, now_s = LineRate(), 0.0, 0.0
    for rtt_s in (*[0.002] * 9, 0.024, 0.026, 0.030, 0.010):
        line_rate.update({"a": PathStats(int(acked), 100_000, False, rtt_s, 0.002)}, now_s)
        now_s, acked = now_s + 0.06, acked + 1.2e7 * 0.06
    assert line_rate.bytes_per_s == pytest.approx(SETTINGS.first_room * 1.2e7, rel=0.01)


def test_a_stream_that_came_while_a_line_was_looked_at_has_no_part_in_a_first_guess_which_waits_for_a_look_at_all() -> (
    None
):
    line_rate, now_s = LineRate(), 0.0
    for number in range(9):
        rtt_s = 0.002 if number < 5 else 0.03
        paths: dict[object, PathStats] = {"a": PathStats(int(4e6 * now_s), 100_000, False, rtt_s, 0.002)}
        if number > 5:
            paths["b"] = PathStats(int(8e6 * now_s), 100_000, False, rtt_s, 0.002)
        line_rate.update(paths, now_s)
        now_s += 0.06
    assert line_rate.bytes_per_s == inf


def test_streams_that_the_kernel_holds_unevenly_below_a_first_pace_that_is_too_high_are_paced_to_what_they_carry() -> (
    None
):
    """It keeps the queue away by itself, so none is seen: of that alone nothing was learned, and one got twice what another did."""
    line_rate, parts = LineRate(), [0.42 * 12e6, 0.36 * 12e6, 0.22 * 12e6]
    line_rate.bytes_per_s = 18e6
    acked = [0.0] * 3
    for number in range(40):
        stats = {n: PathStats(int(each), 100_000, False, 0.004, 0.002) for n, each in enumerate(acked)}
        reported = line_rate.update(dict(stats), 0.05 * number)
        acked = [each + 0.05 * min(part, reported[n]) for n, (each, part) in enumerate(zip(acked, parts, strict=True))]
    assert sum(reported.values()) == pytest.approx(12e6, rel=0.08)
    assert max(reported.values()) < 1.1 * min(reported.values())


@pytest.mark.parametrize("first_bytes_per_s", [13.5e6, 14.5e6, 16e6])
def test_the_pace_of_one_stream_alone_comes_down_to_the_line_and_stays_there_while_the_kernel_keeps_its_queue_too_short_to_see(
    first_bytes_per_s: float,
) -> None:
    """Of two members each has one stream. Its pace stood a sixth to two fifths above the line for as long as they ran."""
    line_rate, acked, rates = LineRate(), 0.0, []
    line_rate.bytes_per_s = first_bytes_per_s
    for number in range(800):
        reported = line_rate.update({"a": PathStats(int(acked), 100_000, False, 0.009, 0.002)}, 0.05 * number)
        acked += 0.05 * min(12e6, reported["a"])
        rates.append(reported["a"])
    assert max(rates[40:]) < 1.08 * 12e6
    assert min(rates) > 0.95 * 12e6


def test_a_line_that_gets_twice_as_fast_is_followed_where_headers_count_as_what_is_sent() -> None:
    """So it is with the fq queueing discipline: of what a stream may send 0.956 is ever acknowledged."""
    line_rate, acked, reported = LineRate(), 0.0, {"a": 14.5e6}
    line_rate.bytes_per_s = 14.5e6
    for number in range(1200):
        stats: dict[object, PathStats] = {"a": PathStats(int(acked), 100_000, False, 0.009, 0.002)}
        reported = {"a": line_rate.update(stats, 0.05 * number)["a"]}
        acked += 0.05 * min(12e6 if number < 400 else 24e6, 0.956 * reported["a"])
    assert reported["a"] > 23e6


def test_the_pace_of_a_stream_whose_receiver_had_a_thin_line_is_the_lines_again_soon_after_others_come() -> None:
    line_rate, acked = LineRate(), [0.0] * 3
    line_rate.bytes_per_s = 12e6
    for number in range(200):
        num_streams = 1 if number < 100 else 3
        stats = {n: PathStats(int(each), 100_000, False, 0.009, 0.002) for n, each in enumerate(acked[:num_streams])}
        reported = line_rate.update({**stats}, 0.05 * number)
        for n in range(num_streams):
            acked[n] += 0.05 * min(8e6 if n == 0 else 12e6, reported[n])
    assert sum(reported.values()) > 0.95 * 12e6


@pytest.mark.parametrize("carries", [(0.0, 0.0), (0.5e6, 1e6), (1e6,)])
def test_receivers_that_stand_still_or_have_thin_lines_do_not_slow_down_a_line_that_is_not_known_yet(
    carries: tuple[float, ...],
) -> None:
    line_rate, acked = LineRate(), [0.0] * len(carries)
    line_rate.bytes_per_s = 12e6
    for number in range(80):
        paths: dict[object, PathStats] = {
            n: PathStats(int(each), 100_000, False, 0.002, 0.002) for n, each in enumerate(acked)
        }
        line_rate.update(paths, 0.05 * number)
        acked = [each + 0.05 * rate for each, rate in zip(acked, carries, strict=True)]
    assert line_rate.bytes_per_s == 12e6


def test_streams_that_the_kernel_lets_grow_slowly_over_a_long_way_are_not_taken_for_a_full_line() -> None:
    """0.2 s there and back: each trip carries half as much again, far below the pace at first."""
    line_rate, acked = LineRate(), [0.0] * 3
    line_rate.bytes_per_s = 12e6
    for number in range(80):
        stats = {n: PathStats(int(each), 100_000, False, 0.2, 0.2) for n, each in enumerate(acked)}
        reported = line_rate.update(dict(stats), 0.05 * number)
        rate = 1e6 * 1.5 ** (number / 4)
        acked = [each + 0.05 * min(rate, reported[n]) for n, each in enumerate(acked)]
    assert line_rate.bytes_per_s >= 12e6


def test_a_stream_that_gets_more_than_its_part_of_a_full_line_does_not_make_it_seem_wider() -> None:
    """The others got less for it. By the best of three alone, 4.9 of 12 MB/s, the line was taken for one of 14.7."""
    line_rate, acked, now_s = LineRate(), [0.0] * 3, 0.0
    line_rate.bytes_per_s = 15e6
    for number in range(12):
        rtt_s = 0.002 if number < 2 else 0.03
        line_rate.update({n: PathStats(int(each), 100_000, False, rtt_s, 0.002) for n, each in enumerate(acked)}, now_s)
        now_s += 0.05
        acked = [each + 0.05 * rate for each, rate in zip(acked, (4.9e6, 4.0e6, 4.1e6), strict=True)]
    assert line_rate.bytes_per_s == pytest.approx(0.97 * 13e6, rel=0.02)


@pytest.mark.parametrize(
    ("no_room", "before_s", "is_learned"),
    [((0.8, 0.8), 0.0, False), ((0.8, 0.1), 0.0, True), ((0.0, 0.0), 0.0, True), ((0.0, 0.0), 9.0, True)],
    ids=["both receivers too busy to read", "one of them", "neither", "both, but before"],
)
@pytest.mark.parametrize("first_bytes_per_s", [inf, 3e7], ids=["a line that is not known", "one with a pace"])
def test_acknowledgements_that_wait_for_receivers_without_room_are_no_queue(
    first_bytes_per_s: float, no_room: tuple[float, float], before_s: float, is_learned: bool
) -> None:
    """Of four members that met for the first time some guessed 4 to 6 MB/s on loopback, and all waited for their next deltas."""
    line_rate = LineRate()
    line_rate.bytes_per_s = first_bytes_per_s
    for number in range(36):
        now_s = 0.05 * number
        paths: dict[object, PathStats] = {
            n: PathStats(int(2e6 * now_s), 100_000, False, 0.02, 0.0, no_room_s=before_s + share * now_s)
            for n, share in enumerate(no_room)
        }
        line_rate.update(paths, now_s)
    assert (line_rate.bytes_per_s < first_bytes_per_s) is is_learned


def test_a_line_whose_receivers_have_small_buffers_is_learned_though_they_never_have_room() -> None:
    line_rate, line = LineRate(), Line(lambda _: 12e6, no_room=0.9)
    line.run(line_rate, 15.0)
    assert line.run(line_rate, 40.0) > 0.95
    assert line.longest_s < 0.06


def test_what_is_left_of_a_busy_receivers_pause_is_no_queue() -> None:
    """Acknowledgements are reckoned smoothly, so they seem late for a while after it; less and less."""
    line_rate, acked, no_room_s, now_s = LineRate(), 0.0, 0.0, 0.0
    line_rate.bytes_per_s = 2e7
    for rtt_s, share, num_looks in ((0.002, 0.0, 5), (0.08, 0.9, 8), (0.03, 0.0, 4)):
        for _ in range(num_looks):
            line_rate.update({"a": PathStats(int(acked), 100_000, False, rtt_s, 0.002, no_room_s=no_room_s)}, now_s)
            now_s, acked, no_room_s = now_s + 0.0625, acked + 5e5, no_room_s + share * 0.0625
    assert line_rate.bytes_per_s == 2e7


def test_a_queue_that_stays_whatever_we_do_is_somebody_elses_and_the_kernel_alone_decides_for_a_while() -> None:
    line_rate, line = LineRate(), Line(lambda _: 12e6, foreign_s=0.1)
    assert line.run(line_rate, 12.0) > 0.7
    assert line_rate.bytes_per_s == inf
    assert line.run(line_rate, 8.0 + SETTINGS.unpaced_s) == pytest.approx(1.0, abs=0.01)
    assert set(line.parts.values()) == {inf}


@pytest.mark.parametrize("thin", [{0: 1e6}, {0: 1e6, 1: 2e6}, {0: 3e6}])
def test_who_waits_alone_has_a_receiver_with_a_thin_line_and_the_others_fill_what_it_leaves(
    thin: dict[int, float],
) -> None:
    line_rate, line = LineRate(), Line(lambda _: 12e6, thin=thin)
    line_rate.bytes_per_s = 4e6
    line.run(line_rate, 20.0)
    assert line.run(line_rate, 60.0) > 0.93


def test_a_stream_whose_receiver_stands_still_keeps_its_part_and_goes_on_where_it_was() -> None:
    """The kernel keeps to when the next packet may leave: a stream that was told a rate near zero would be dead for hours."""
    line_rate, line = LineRate(), Line(lambda _: 12e6)
    line.run(line_rate, 20.0)
    line.thin[0] = 0.0
    for second in range(21, 26):
        line.run(line_rate, float(second))
        assert min(line.parts.values()) > 3e6
    del line.thin[0]
    line.run(line_rate, 30.0)
    assert line.run(line_rate, 40.0) > 0.93


def test_one_that_comes_late_leaves_or_lies_far_away_gets_an_even_part_at_once() -> None:
    line_rate, near = LineRate(), PathStats(0, 1000, False, 0.001, 0.001)
    line_rate.bytes_per_s = 9e6
    assert line_rate.update({"a": near, "b": near}, 1.0) == {"a": 4.5e6, "b": 4.5e6}
    far = PathStats(0, 1000, False, 0.4, 0.4)
    for look in range(20):
        parts = line_rate.update({"a": near, "b": near, "far": far}, 1.05 + 0.05 * look)
        assert set(parts.values()) == {line_rate.bytes_per_s / 3}
    assert line_rate.update({"far": far}, 2.1) == {"far": line_rate.bytes_per_s}
    assert line_rate.update({"a": near, "far": far}, 2.2)["a"] == line_rate.bytes_per_s / 2


def test_so_many_streams_that_each_would_get_too_little_are_not_paced() -> None:
    line_rate, path = LineRate(), PathStats(0, 1000, False, 0.001, 0.001)
    line_rate.bytes_per_s = 30 * SETTINGS.least_part_bytes_per_s
    assert set(line_rate.update(dict.fromkeys(range(30), path), 1.0).values()) == {SETTINGS.least_part_bytes_per_s}
    assert set(line_rate.update(dict.fromkeys(range(31), path), 1.01).values()) == {inf}


def test_what_is_sent_with_pauses_says_nothing_of_the_line() -> None:
    line_rate, acked = LineRate(), 0
    line_rate.bytes_per_s = 1e6
    for look in range(1000):
        acked += 1000
        waiting = 1000 if look % 3 else 0
        line_rate.update({"a": PathStats(acked, waiting, False, 0.5, 0.01)}, 0.05 * look)
    assert line_rate.bytes_per_s == 1e6


@pytest.mark.parametrize("bytes_per_s", [3 * SETTINGS.most_bytes_per_s, SETTINGS.least_bytes_per_s])
def test_lines_that_are_very_fast_or_very_thin_are_left_to_the_kernel(bytes_per_s: float) -> None:
    line_rate, line = LineRate(), Line(lambda _: bytes_per_s)
    assert line.run(line_rate, 29.0) == pytest.approx(1.0, abs=0.03)
    assert set(line.parts.values()) == {inf}


def test_a_line_that_becomes_very_thin_is_left_to_the_kernel_once_that_is_known() -> None:
    line_rate, line = LineRate(), Line(lambda now_s: 12e6 if now_s < 10.0 else SETTINGS.least_bytes_per_s / 2)
    line.run(line_rate, 10.0)
    assert line_rate.bytes_per_s > 10e6
    line.run(line_rate, 25.0)
    assert line_rate.bytes_per_s == inf


def test_streams_that_nobody_is_left_of_get_nothing() -> None:
    assert LineRate().update({}, 1.0) == {}
