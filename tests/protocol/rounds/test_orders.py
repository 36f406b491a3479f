from __future__ import annotations

import dataclasses
import typing

from protocol.rounds import orders
from protocol.rounds.messages import Ballot, PreVoteRequest, Settle
from protocol.rounds.orders import Action
from protocol.rounds.state import LeaveOrdered
from tests.protocol.rounds.round_table import UNIT, Table

ACTIONS = typing.get_args(Action)


def _defined() -> set[type]:
    return {value for value in vars(orders).values() if isinstance(value, type) and value.__module__ == orders.__name__}


def test_every_order_is_named_among_the_actions_that_a_driver_has_to_perform() -> None:
    assert _defined() == set(ACTIONS)


def test_an_order_cannot_be_changed_after_it_was_given() -> None:
    for kind in ACTIONS:
        assert dataclasses.is_dataclass(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_story_with_a_death_a_goodbye_and_two_partitions_gives_every_order_there_is() -> None:
    table = Table(5, lone_patience_s=6.0, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(1))
    one, two, three, four, five = table.live()
    table.drops = lambda sender, to, message: isinstance(message, Settle)
    table.run_until(lambda: table.opener().state.open.exchange is not None)
    five.feed(LeaveOrdered())
    table.talk()
    table.kill(five)
    table.drops = lambda sender, to, message: False
    table.split(one)
    table.run_until(lambda: min(one.head.index, two.head.index) >= 3, 200.0)
    for seat in (one, two):
        seat.tokens = 1000
    table.run_for(10.0)
    table.heal()
    table.run_until(lambda: len({seat.head.commit for seat in table.live()}) == 1, 100.0)
    table.split(one)
    base = two.head.commit
    table.run_until(lambda: two.head.commit != base and three.head.commit != base, 60.0)
    table.heal()
    two.hear(one, PreVoteRequest(UNIT, base, Ballot(1, one.peer), 5.0))
    given = {type(order) for seat in (one, two, three, four, five) for order in seat.orders}
    assert given == set(ACTIONS)
