from __future__ import annotations

from protocol.ids import CommitId
from protocol.rounds.events import PeerLost
from protocol.rounds.messages.messages import Ack, DoubleVote, Leave, PreVoteRequest
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import encode_message
from protocol.rounds.orders import ReportDoubleVote, Send
from protocol.rounds.queries import caught_up
from protocol.rounds.voting import LEAVE_VERSION
from tests.protocol.rounds.round_table import UNIT, Seat, Table, acquaint, heartbeat_of


def _proof(liar: Seat) -> DoubleVote:
    """Two acks of one ballot for two commits."""
    ballot, base = Ballot(0, liar.peer), liar.head.commit
    acks = (Ack(UNIT, base, ballot, CommitId(name * 32), version=1) for name in (b"a", b"b"))
    return DoubleVote(UNIT, *(liar.sealed(encode_message(ack)) for ack in acks))


def _acquainted() -> tuple[Table, Seat, Seat, Seat]:
    """(table, who is told, who tells it, who lied); orders are recorded only."""
    table = Table(4)
    acquaint(table)
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    seat, witness, liar, _ = table.live()
    return table, seat, witness, liar


def test_a_voter_that_is_convicted_is_reported_to_the_host_and_told_to_all_others_who_are_there() -> None:
    table, seat, witness, liar = _acquainted()
    gone = table.others(seat, witness, liar)[0]
    seat.feed(PeerLost(gone.peer))
    proof = _proof(liar)
    report, told = seat.hear(witness, proof)
    assert report == ReportDoubleVote(liar.peer, proof.one, proof.other)
    assert told == Send((witness.peer,), proof)
    assert "the later ack hides the earlier: it is out" in seat.reasons[-1]


def test_a_proof_is_passed_on_once() -> None:
    _, seat, witness, liar = _acquainted()
    assert seat.hear(witness, _proof(liar))
    assert seat.hear(witness, _proof(liar)) == ()
    assert "convicts nobody new" in seat.reasons[-1]


def test_no_vote_no_goodbye_and_no_accusation_of_an_expelled_peer_counts_any_more() -> None:
    _, seat, witness, liar = _acquainted()
    seat.hear(witness, _proof(liar))
    before, base, ballot = seat.state, liar.head.commit, Ballot(1, liar.peer)
    for message in (
        PreVoteRequest(UNIT, base, ballot, 1000.0),
        Ack(UNIT, base, Ballot(0, seat.peer), base, version=1),
        Leave(liar.member, UNIT, base, version=LEAVE_VERSION),
        _proof(witness),
    ):
        assert seat.hear(liar, message) == ()
        assert "dropped a message of" in seat.reasons[-1]
    assert seat.state == before


def test_an_expelled_peer_is_no_member_of_the_next_round_however_often_it_says_that_it_trains() -> None:
    table, seat, witness, liar = _acquainted()
    assert liar.peer in {view.peer for view in caught_up(seat.state, table.now_s)}
    seat.hear(witness, _proof(liar))
    seat.hear(liar, heartbeat_of(liar))
    assert {view.peer for view in caught_up(seat.state, table.now_s)} == set(table.seats) - {seat.peer, liar.peer}


def test_an_accusation_without_a_proof_expels_nobody_and_is_passed_on_to_nobody() -> None:
    _, seat, witness, liar = _acquainted()
    proof = _proof(liar)
    for wrong in (DoubleVote(UNIT, proof.one, proof.one), DoubleVote(UNIT, b"", b""), DoubleVote(UNIT, proof.one, b"")):
        assert seat.hear(witness, wrong) == ()
        assert "convicts nobody new" in seat.reasons[-1]
    assert seat.state.barred.expelled == frozenset()
