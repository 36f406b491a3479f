"""Attacks of one admitted member on who votes next and on what is credited, at a table of honest peers: none succeeds.

Rules: R3, R7, R10, R14 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from protocol.ids import PeerId
from protocol.rounds import attempt
from protocol.rounds.events import PeerLost
from protocol.rounds.lineage.quorum import opener_order
from protocol.rounds.messages.messages import PreVoteRequest, PromiseRequest, Proposal
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.schedule.proposal import Voters
from protocol.rounds.state import Leading, PeerView, RoundState
from tests.protocol.rounds.round_table import RUN_ID, TARGET_TOKENS, UNIT, Answer, Parcel, Seat, Table


def _table(num_peers: int, **numbers: object) -> Table:
    """Honest peers that have committed one round."""
    table = Table(num_peers, longest_interval_s=5.0, **numbers)
    table.run_until(lambda: table.all_at(1), 60.0)
    return table


def _records(seat: Seat) -> list[CommitRecord]:
    return [link.record for link, _ in seat.disk.chain if link.record is not None]


def _works_with(monkeypatch: pytest.MonkeyPatch, liar: Seat, num_others: int) -> None:
    """From now on the liar proposes to so many others alone, and drops as many of the rest as the rules allow: those who would lead
    next.
    """
    others_here, may_hand_on, at_hand = attempt.others_here, attempt.may_hand_on, attempt.voters_at_hand

    def few(state: RoundState, led: Leading, now_s: float) -> tuple[PeerView, ...]:
        found = others_here(state, led, now_s)
        return found[:num_others] if state.config.me.peer == liar.peer else found

    def voters(state: RoundState, alive: Iterable[PeerId], now_s: float) -> Voters:
        alive = list(alive)
        if state.config.me.peer != liar.peer:
            return at_hand(state, alive, now_s)
        order = opener_order(RUN_ID, UNIT, state.link.index + 1, 0, state.link.roster)
        gone = [peer for peer in order if peer not in alive][: len(order) // 3]
        return Voters(frozenset(order) - set(gone), frozenset())

    monkeypatch.setattr(attempt, "others_here", few)
    monkeypatch.setattr(
        attempt, "may_hand_on", lambda state, *rest: state.config.me.peer == liar.peer or may_hand_on(state, *rest)
    )
    monkeypatch.setattr(attempt, "voters_at_hand", voters)


@pytest.mark.parametrize(("num_peers", "num_others"), [(3, 1), (5, 1), (5, 2), (8, 1), (8, 4)])
def test_a_leader_that_leaves_live_voters_out_of_its_proposal_drops_none_of_them(
    num_peers: int, num_others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be a quorum by itself after a few rounds: the voters it left out must not ack that they are dropped, and those
    whom it chose must not ack that others are.
    """
    table = _table(num_peers)
    liar = table.live()[0]
    honest = table.others(liar)
    _works_with(monkeypatch, liar, num_others)
    table.run_until(lambda: all(seat.head.index >= 24 for seat in honest), 120.0)
    assert any(isinstance(message, Proposal) for message in liar.sent(Proposal))
    for record in _records(honest[0]):
        assert len(record.roster) == num_peers
        assert record.ballot.peer != liar.peer or len(record.contributors) > num_peers // 2
    reasons = {reason for seat in honest for reason in seat.reasons if "refused a record" in reason}
    assert any("takes part and answers us" in reason or "it counts nothing of ours" in reason for reason in reasons)


def test_a_voter_that_died_before_a_round_is_dropped_by_it() -> None:
    """Nobody hears it when asked. So deaths one after the other never cost the quorum."""
    table = _table(6)
    for size in (5, 4, 3):
        table.kill(next(seat for seat in table.live() if seat is not table.opener()))
        index = max(seat.head.index for seat in table.live())
        table.run_until(lambda index=index: table.all_at(index + 2), 60.0)  # type: ignore[misc]
        assert len(table.live()[0].head.roster) == size


@pytest.mark.parametrize("num_peers", [4, 6])
@pytest.mark.parametrize("is_always", [True, False])
def test_a_member_that_answers_all_but_the_leader_costs_each_leader_one_record_and_no_more(
    num_peers: int, monkeypatch: pytest.MonkeyPatch, *, is_always: bool
) -> None:
    """It offers nothing, so nothing of it is counted. Its leader takes it for lost and drops it, and others hear it."""
    table = _table(num_peers)
    liar = next(seat for seat in table.live() if seat is not table.opener())
    honest = table.others(liar)
    liar.has_trainer = False
    deliver = table.deliver
    victim = honest[0]

    def leads(seat: Seat) -> bool:
        led = seat.state.open.leading
        return seat is victim if is_always else led is not None and led.stage in ("collecting", "settling")

    def refusing(item: Parcel | Answer) -> None:
        if isinstance(item, Parcel) and liar.peer in (item.sender, item.to) and item.sender != item.to:
            other = table.seats[item.to if item.sender == liar.peer else item.sender]
            if leads(other) and not isinstance(item.message, Proposal):
                if item.to == liar.peer:
                    other.feed(PeerLost(liar.peer))
                return
        deliver(item)

    monkeypatch.setattr(table, "deliver", refusing)
    leading = (PreVoteRequest, PromiseRequest, Proposal)
    table.drops = lambda sender, to, message: sender == liar.peer and isinstance(message, leading)
    table.run_for(120.0)
    for seat in honest:
        refused = [reason for reason in seat.reasons if "from the voters, which takes part" in reason]
        assert len(refused) <= 2 * len(set(refused))
    assert honest[0].head.index > 30


@pytest.mark.parametrize("place", [0, 1])
def test_in_a_run_of_two_a_lie_about_tokens_credits_no_more_than_four_targets_a_round(place: int) -> None:
    rounds = 24
    table = Table(2, longest_interval_s=5.0, total_tokens=rounds * TARGET_TOKENS)
    liar = table.live()[place]
    (honest,) = table.others(liar)
    liar.tokens = 1 << 53
    table.run_for(60.0)
    records = _records(honest)
    assert len(records) >= rounds // 5
    for record in records:
        tokens = {entry.peer: entry.credited_tokens for entry in record.contributors}
        assert tokens[liar.peer] <= 4 * TARGET_TOKENS
        assert tokens[honest.peer] > 0


@pytest.mark.parametrize("ratio", [4, 20, 100])
def test_of_two_uneven_peers_all_the_work_is_credited_round_after_round(ratio: int) -> None:
    table = Table(2, longest_interval_s=30.0)
    fast, slow = table.live()
    fast.tokens, slow.tokens, fast.tokens_a_tick, slow.tokens_a_tick = 0, 0, ratio, 1
    table.run_until(lambda: table.all_at(8), 600.0)
    for record in _records(fast):
        assert all(entry.credited_tokens == entry.tokens for entry in record.contributors)


def test_a_run_with_more_peers_than_a_round_takes_goes_on_though_live_voters_may_be_left_out() -> None:
    """There is room for no more, so nobody refuses a record for them."""
    table = Table(9, num_founders=4, longest_interval_s=5.0, max_members=4)
    table.run_until(lambda: table.all_at(20), 60.0)
    assert {len(record.roster) for record in _records(table.live()[0])} == {4}
    assert not [reason for seat in table.live() for reason in seat.reasons if "refused a record" in reason]
