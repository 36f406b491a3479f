from __future__ import annotations

from itertools import combinations

from protocol.ids import CommitId, PeerId
from protocol.rounds.quorum import first_opener, is_quorum, opener_order, tie_holder

RUN = bytes(32)
PEERS = tuple(PeerId(f"peer{i}") for i in range(6))


def test_any_two_quorums_of_one_roster_share_a_peer() -> None:
    for size in range(1, 7):
        roster = PEERS[:size]
        quorums = [
            set(votes)
            for count in range(size + 1)
            for votes in combinations(roster, count)
            if is_quorum(RUN, roster, votes)
        ]
        assert quorums
        assert all(a & b for a, b in combinations(quorums, 2))


def test_half_of_an_even_roster_counts_only_with_the_tie_holder() -> None:
    roster = PEERS[:4]
    holder = tie_holder(RUN, roster)
    others = [peer for peer in roster if peer != holder]
    assert is_quorum(RUN, roster, {holder, others[0]})
    assert not is_quorum(RUN, roster, set(others[:2]))


def test_votes_from_outside_the_roster_do_not_count() -> None:
    assert not is_quorum(RUN, PEERS[:3], {PEERS[0], PEERS[4], PEERS[5]})


def test_the_opener_changes_with_the_base_and_the_attempt_and_not_with_the_order_of_peers() -> None:
    base = CommitId(b"b" * 32)
    assert opener_order(base, 1, PEERS) == opener_order(base, 1, reversed(PEERS))
    openers = {first_opener(CommitId(bytes([i]) * 32), PEERS) for i in range(64)}
    assert openers == set(PEERS)
    assert {opener_order(base, attempt, PEERS)[0] for attempt in range(64)} == set(PEERS)
