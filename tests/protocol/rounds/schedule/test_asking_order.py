from __future__ import annotations

from collections import Counter

from protocol.ids import PeerId
from protocol.rounds.schedule.asking_order import asking_order

PEERS = [PeerId(f"peer {number}") for number in range(256)]


def test_no_peer_is_asked_first_by_many() -> None:
    first = Counter(asking_order(me, (peer for peer in PEERS if peer != me))[0] for me in PEERS)
    assert max(first.values()) <= 6


def test_one_peer_asks_for_different_things_in_different_orders() -> None:
    first = Counter(asking_order(PEERS[0], PEERS[1:], bytes([number]))[0] for number in range(256))
    assert max(first.values()) <= 6


def test_the_order_has_everybody_once_and_is_the_same_again() -> None:
    order = asking_order(PEERS[0], PEERS[5:9] * 2)
    assert sorted(order) == sorted(PEERS[5:9])
    assert asking_order(PEERS[0], reversed(PEERS[5:9])) == order
