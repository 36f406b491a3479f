from __future__ import annotations

from itertools import combinations

from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.quorum import electorate, first_opener, is_quorum, opener_order, tie_holder
from protocol.rounds.messages.messages import Ballot, Leave, Member

RUN = bytes(32)
PEERS = tuple(PeerId(f"peer{i}") for i in range(6))


def _leave(peer: PeerId, promised: Ballot | None) -> Leave:
    return Leave(Member(peer, 1, 1), UnitName("fragment-0"), CommitId(bytes(32)), promised)


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


def test_who_left_no_longer_counts_but_for_ballots_below_what_it_promised() -> None:
    leaves = {PEERS[0]: _leave(PEERS[0], Ballot(2, PEERS[1])), PEERS[2]: _leave(PEERS[2], None)}
    assert electorate(PEERS, Ballot(1, PEERS[1]), leaves) == (PEERS[0], PEERS[1], *PEERS[3:])
    assert electorate(PEERS, Ballot(2, PEERS[1]), leaves) == (PEERS[1], *PEERS[3:])
    assert electorate(PEERS, Ballot(3, PEERS[0]), leaves) == (PEERS[1], *PEERS[3:])


def test_a_quorum_without_a_leaver_together_with_its_goodbye_meets_every_quorum_with_it() -> None:
    for size in range(2, 7):
        roster = PEERS[:size]
        rest = roster[1:]
        before = [set(v) for n in range(1, size + 1) for v in combinations(roster, n) if is_quorum(RUN, roster, v)]
        after = [set(v) for n in range(1, size) for v in combinations(rest, n) if is_quorum(RUN, rest, v)]
        assert all((votes | {roster[0]}) & earlier for votes in after for earlier in before)


def test_the_tie_holder_depends_on_the_run_and_the_roster_only() -> None:
    assert tie_holder(RUN, PEERS) == tie_holder(RUN, reversed(PEERS))
    assert {tie_holder(bytes([i]) * 32, PEERS) for i in range(64)} == set(PEERS)
