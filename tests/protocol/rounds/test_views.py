from __future__ import annotations

from protocol.rounds.state import MessageArrived, Progressed
from protocol.rounds.views import caught_up, is_due, own_heartbeat, ready_tokens
from tests.protocol.rounds.round_table import Table, heartbeat_of


def test_ready_tokens_count_live_caught_up_holders_only() -> None:
    table = Table(3)
    seat, other, third = table.live()
    for one in table.live():
        one.feed(Progressed(100, True))
    seat.feed(MessageArrived(other.peer, heartbeat_of(other), b""))
    assert ready_tokens(seat.state, table.now_s) == 200
    assert not is_due(seat.state, table.now_s)
    seat.feed(MessageArrived(third.peer, heartbeat_of(third), b""))
    assert is_due(seat.state, table.now_s)
    assert [view.peer for view in caught_up(seat.state, table.now_s)] == sorted([other.peer, third.peer])
    assert ready_tokens(seat.state, table.now_s + 60.0) == 100


def test_a_peer_that_may_not_contribute_is_no_holder() -> None:
    table = Table(3)
    seat, other, _ = table.live()
    other.feed(Progressed(100, False))
    seat.feed(MessageArrived(other.peer, heartbeat_of(other), b""))
    assert caught_up(seat.state, table.now_s) == ()


def test_the_heartbeat_says_where_we_stand() -> None:
    seat = Table(3).live()[0]
    seat.feed(Progressed(42, True))
    heartbeat = own_heartbeat(seat.state)
    assert heartbeat.member == seat.member
    assert heartbeat.heads[0].tokens_ready == 42
    assert heartbeat.heads[0].head == seat.head.commit
