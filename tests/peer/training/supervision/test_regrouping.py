"""A life of processes ends for other cards only once they are wanted and a round is over, and tells whether that was the reason."""

from __future__ import annotations

import trio.testing

from peer.training.plan.layout import Mesh, World
from peer.training.supervision.regrouping import Regrouping

TWO = World(devices=("cuda:0", "cuda:1"), mesh=Mesh(copies=2))


async def test_a_life_ends_at_the_end_of_a_round_for_cards_that_are_wanted_and_goes_on_otherwise(
    autojump_clock: trio.testing.MockClock,
) -> None:
    regrouping = Regrouping()
    with regrouping.life():
        assert not regrouping.end_life()
        await trio.sleep(1.0)
    assert regrouping.taken() is None
    with regrouping.life():
        regrouping.want(TWO)
        await trio.sleep(1.0)
        assert regrouping.end_life()
        await trio.sleep_forever()
    assert regrouping.taken() == TWO
    assert not regrouping.is_wanted
    with regrouping.life():
        assert not regrouping.end_life(), "they train now"


async def test_processes_that_end_before_the_round_is_over_leave_the_cards_wanted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    regrouping = Regrouping()
    with regrouping.life():
        regrouping.want(TWO)
    assert regrouping.taken() is None
    assert regrouping.is_wanted
