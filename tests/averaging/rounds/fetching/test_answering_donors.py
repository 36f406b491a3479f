"""Donors that are there are told from silent ones at once, in seconds."""

from __future__ import annotations

import pytest
import trio

from averaging.rounds.fetching.answering_donors import ANSWER_WITHIN_S, Donors, answering
from protocol.ids import PeerId
from tests.averaging.rounds.round_world import UNIT, open_world

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def test_donors_that_answer_anything_come_before_those_that_are_gone_or_asleep() -> None:
    async with open_world() as world:
        asker, asleep, serves = world.parties
        serves.serve_fetches()
        world.swarm.freeze(asleep.peer)
        gone, began_s = PeerId("gone"), trio.current_time()
        donors = [gone, asleep.peer, serves.peer, gone]
        found = await answering(asker.network, UNIT, donors)
        assert found == Donors((serves.peer,), (gone, asleep.peer))
        assert found.in_order == (serves.peer, gone, asleep.peer)
        assert trio.current_time() - began_s <= ANSWER_WITHIN_S + 0.01


async def test_without_donors_nothing_is_asked_and_nobody_waited_for() -> None:
    async with open_world() as world:
        began_s = trio.current_time()
        assert await answering(world.parties[0].network, UNIT, ()) == Donors((), ())
        assert trio.current_time() == began_s
