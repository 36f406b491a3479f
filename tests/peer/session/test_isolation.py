from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from peer.session.isolation import hears_anybody
from protocol.rounds.state import RoundState
from tests.protocol.rounds.round_table import Table


def _without_heads(state: RoundState) -> RoundState:
    """All others as peers that do not hold the unit."""
    views = {peer: replace(view, head=None) for peer, view in state.peers.items()}
    return replace(state, peers=MappingProxyType(views))


def test_a_helper_is_no_member_that_is_heard_and_a_holder_of_another_part_is() -> None:
    table = Table(3)
    table.tick()
    seat = table.live()[0]
    state = seat.state
    assert hears_anybody(state, table.now_s, do_all_hold=True)
    others = _without_heads(state)
    assert not hears_anybody(others, table.now_s, do_all_hold=True)
    assert hears_anybody(others, table.now_s, do_all_hold=False)
    table.split(seat)
    table.run_for(60.0)
    assert not hears_anybody(seat.state, table.now_s, do_all_hold=True)
