from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import pytest

from averaging.network.direct.substream_rule import MOST_SUBSTREAMS, SubstreamRule
from averaging.network.pacing.line_rate import PathStats

LOOK_S = 0.25


@dataclass
class Way:
    """A line of so many bytes a second, on which each connection is held to `each` of them by what gets lost."""

    carries: float = 5e6
    each: float = 1e6
    rtt_s: float = 0.1
    queue_s: float = 0.0
    loses: bool = True
    held_share: float = 0.0
    waiting_bytes: int = 100_000
    paced: float = inf
    comes: Callable[[int], int] = lambda number: number
    num_paths: int = 1
    now_s: float = 0.0
    acked: list[float] = field(default_factory=lambda: [0.0] * MOST_SUBSTREAMS)
    num_lost: int = 0
    held_s: float = 0.0

    def run(self, rule: SubstreamRule, seconds: float) -> int:
        """How many connections there are in the end."""
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            rate = min(self.each, self.carries / self.num_paths)
            for number in range(self.num_paths):
                self.acked[number] += rate * LOOK_S
            self.num_lost += 3 * self.loses
            self.held_s += self.held_share * LOOK_S
            self.num_paths = self.comes(rule.decide(self._looks(), self.paced, self.now_s))
        return self.num_paths

    def _looks(self) -> list[PathStats]:
        rtt_s = self.rtt_s + self.queue_s
        return [
            PathStats(int(self.acked[number]), self.waiting_bytes, False, rtt_s, self.rtt_s, self.num_lost, self.held_s)
            for number in range(self.num_paths)
        ]


def test_where_losses_hold_connections_below_the_line_there_are_more_until_it_is_full() -> None:
    rule, way = SubstreamRule(), Way()
    assert way.run(rule, 60.0) == MOST_SUBSTREAMS
    assert rule.num_useful == MOST_SUBSTREAMS
    assert way.each * way.num_paths >= way.carries


def test_they_double_so_that_a_transfer_of_ten_seconds_has_some_of_it() -> None:
    assert Way().run(SubstreamRule(), 6.0) >= 4


@pytest.mark.parametrize(
    "way",
    [
        Way(loses=False),
        Way(queue_s=0.05),
        Way(rtt_s=0.002),
        Way(waiting_bytes=0),
        Way(paced=1.1e6),
    ],
    ids=["nothing is lost", "a queue at the line", "a short way", "nothing more to send", "held back by ourselves"],
)
def test_one_connection_is_enough_where(way: Way) -> None:
    assert way.run(SubstreamRule(), 60.0) == 1


def test_a_full_buffer_asks_for_more_connections_as_losses_do() -> None:
    assert Way(loses=False, held_share=0.9).run(SubstreamRule(), 60.0) > 1
    assert Way(loses=False, held_share=0.2).run(SubstreamRule(), 60.0) == 1


def test_connections_that_carry_nothing_more_are_the_last_ones() -> None:
    """Somebody before us lets only so much through, and drops the rest without a queue."""
    rule, way = SubstreamRule(), Way(carries=1e6)
    assert way.run(rule, 60.0) == 2
    assert rule.num_useful == 1


def test_those_that_have_not_come_yet_are_not_judged() -> None:
    rule, way = SubstreamRule(), Way(comes=lambda _: 1)
    assert way.run(rule, 30.0) == 1
    way.num_paths, way.comes = 2, lambda number: number
    assert way.run(rule, 60.0) == MOST_SUBSTREAMS


def test_a_pause_in_sending_is_not_judged() -> None:
    rule, way = SubstreamRule(), Way()
    way.run(rule, 0.75)
    way.waiting_bytes = 0
    assert way.run(rule, 10.0) == 1
    way.waiting_bytes = 100_000
    assert way.run(rule, 0.75) == 1
    assert way.run(rule, 3.0) > 1
