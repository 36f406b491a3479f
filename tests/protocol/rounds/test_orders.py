from __future__ import annotations

import ast
import dataclasses
import pathlib
import typing

import pytest

from protocol.ids import CommitId, PeerId, Root
from protocol.rounds import orders
from protocol.rounds.events import LeaveOrdered
from protocol.rounds.messages.messages import Ack, DoubleVote, FalseSum, PreVoteRequest, Settle
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import encode_message
from protocol.rounds.orders import Action, LogPromise
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


def test_a_story_with_a_death_a_goodbye_a_lie_and_two_partitions_gives_every_order_there_is() -> None:
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
    thin = Table(3, longest_interval_s=400.0)
    thin.drops = lambda sender, to, message: isinstance(message, Settle)
    thin.run_until(lambda: thin.opener().state.open.exchange is not None)
    thin.live()[0].late_upload_s = 100.0
    thin.run_for(1.0)
    witness, liar, _ = thin.live()
    acks = (
        Ack(UNIT, thin.genesis.commit, Ballot(0, liar.peer), CommitId(name * 32), version=1) for name in (b"a", b"b")
    )
    witness.hear(liar, DoubleVote(UNIT, *(liar.sealed(encode_message(ack)) for ack in acks)))
    third = thin.live()[2]
    third.hear(witness, FalseSum(UNIT, third.head.commit, liar.peer, Root(bytes(32)), bytes(32)))
    given = [order for seat in (one, two, three, four, five, *thin.live()) for order in seat.orders]
    assert {type(order) for order in given} == set(ACTIONS)
    assert all(order.reason for order in given)


@pytest.mark.parametrize("kind", ACTIONS, ids=lambda kind: kind.__name__)
def test_an_order_is_nowhere_made_without_a_reason(kind: type) -> None:
    place = [field.name for field in dataclasses.fields(kind)].index("reason")
    made = [call for call in _calls() if isinstance(call.func, ast.Name) and call.func.id == kind.__name__]
    assert made
    for call in made:
        reason = call.args[place] if len(call.args) > place else {k.arg: k.value for k in call.keywords}.get("reason")
        assert reason is not None, ast.unparse(call)
        assert not (isinstance(reason, ast.Constant) and not reason.value), ast.unparse(call)


def _calls() -> list[ast.Call]:
    folder = pathlib.Path(orders.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf8")) for path in sorted(folder.glob("*.py"))]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_orders_that_ask_for_the_same_are_equal_whatever_they_say() -> None:
    base, ballot = CommitId(bytes(32)), Ballot(1, PeerId("one"))
    assert LogPromise(base, ballot, "it asked") == LogPromise(base, ballot, "it asked again")
