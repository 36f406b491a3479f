from __future__ import annotations

from dataclasses import replace

from protocol.rounds.messages import Heartbeat, Leave, Member
from protocol.rounds.state import MessageArrived, PeerAnswered, PeerLost, PeersListed, SendHeartbeat, Ticked
from protocol.rounds.views import is_alive, is_suspected
from tests.protocol.rounds.round_table import Table, heartbeat_of


def test_a_reset_is_a_death_at_once_and_the_next_word_a_return() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.feed(MessageArrived(other.peer, heartbeat_of(other), b""))
    assert is_alive(seat.state, other.peer, table.now_s, 5.0)
    seat.feed(PeerLost(other.peer))
    assert not is_alive(seat.state, other.peer, table.now_s, 5.0)
    seat.feed(PeerAnswered(other.peer))
    assert is_alive(seat.state, other.peer, table.now_s, 5.0)


def test_our_own_sleep_makes_nobody_silent() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.feed(MessageArrived(other.peer, heartbeat_of(other), b""))
    table.now_s += 60.0
    seat.feed(Ticked(lag_s=60.0))
    assert not is_suspected(seat.state, other.peer, table.now_s)


def test_silence_beyond_the_limit_makes_a_suspect() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.feed(MessageArrived(other.peer, heartbeat_of(other), b""))
    table.now_s += 1.9
    assert not is_suspected(seat.state, other.peer, table.now_s)
    table.now_s += 0.2
    assert is_suspected(seat.state, other.peer, table.now_s)


def test_a_listed_peer_that_never_spoke_is_not_taken_for_alive() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.feed(PeersListed((other.peer, seat.peer)))
    assert seat.peer not in seat.state.peers
    assert not is_alive(seat.state, other.peer, table.now_s, 60.0)


def test_who_says_goodbye_is_not_waited_for() -> None:
    table = Table(3)
    seat, other = table.live()[:2]
    seat.feed(MessageArrived(other.peer, heartbeat_of(other), b""))
    seat.feed(MessageArrived(other.peer, Leave(other.member), b""))
    assert is_suspected(seat.state, other.peer, table.now_s)


def test_heartbeats_go_to_a_constant_number_of_peers_in_a_large_swarm() -> None:
    table = Table(3)
    seat = table.live()[0]
    many = tuple(f"stranger{i:03}" for i in range(100))
    seat.feed(PeersListed(many))  # type: ignore[arg-type]
    asked: set[str] = set()
    for _ in range(60):
        table.now_s += 1.0
        for action in seat.feed(Ticked()):
            if isinstance(action, SendHeartbeat):
                assert len(action.to) <= 4
                asked.update(action.to)
        table.queue.clear()
    assert asked >= set(many)


def test_a_heartbeat_in_anothers_name_is_not_believed() -> None:
    table = Table(3)
    seat, other, third = table.live()
    forged: Heartbeat = replace(heartbeat_of(other), member=Member(third.peer, 1, 1))
    seat.feed(MessageArrived(other.peer, forged, b""))
    assert seat.state.peers[third.peer].member is None
    assert seat.state.peers[other.peer].member is None
