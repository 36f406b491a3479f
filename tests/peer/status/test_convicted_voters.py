from __future__ import annotations

import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.lineage.round_reports import (
    RoundReason,
    SumConvicted,
    SumNotShown,
    SumsAudited,
    VoterConvicted,
)
from peer.status.convicted_voters import MAX_CONVICTED, ConvictedVoters
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources, status_of
from protocol.host.reports import MAX_DOUBLE_VOTES, MAX_FALSE_SUMS, MAX_SIGNED_BYTES, NO_PROOFS
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.messages import FalseSum
from tests.virtual import VirtualClock

ME, LIAR = PeerId("me"), PeerId("liar")


def _convicted(voter: PeerId, other: bytes = b"other") -> VoterConvicted:
    return VoterConvicted(voter, voter.encode(), other)


async def test_a_convicted_voter_is_expelled_and_logged_once_whichever_unit_finds_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    board, expelled = StatusBoard(ME, VirtualClock(), 0.0), list[PeerId]()
    board.convicted.expel = expelled.extend
    with capture_logs() as said:
        for publish in (board.publish, board.publish_other_unit, board.publish):
            publish(_convicted(LIAR))
            publish(RoundReason("nothing new"))
    assert expelled == [LIAR]
    assert [line["event"] for line in said] == ["voter_convicted"]
    assert board.for_host.is_set(), "the host hears of it at once"
    status = status_of(Sources(board))
    assert status.trouble == f"signed what contradicts itself and are out: {peer_name(LIAR)}"


def test_a_peer_that_its_own_acks_convict_does_not_expel_itself() -> None:
    expelled: list[PeerId] = []
    convicted = ConvictedVoters(ME, expelled.extend)
    assert convicted.take(_convicted(ME))
    assert (expelled, len(convicted.waiting)) == ([], 1)


def test_proofs_wait_in_order_until_the_host_has_them() -> None:
    convicted = ConvictedVoters(ME)
    voters = [PeerId(f"liar {number}") for number in range(MAX_DOUBLE_VOTES + 2)]
    for voter in voters:
        convicted.take(_convicted(voter))
    first = convicted.next_for_host
    assert [proof.one.decode() for proof in first.double_votes] == voters[:MAX_DOUBLE_VOTES]
    convicted.host_has(first)
    assert [proof.one.decode() for proof in convicted.next_for_host.double_votes] == voters[MAX_DOUBLE_VOTES:]
    convicted.host_has(convicted.next_for_host)
    assert not convicted.take(_convicted(voters[0])), "it is known"
    assert convicted.next_for_host == NO_PROOFS
    assert "and 7 more" in convicted.sentence


def test_no_more_voters_are_remembered_than_a_roster_has_and_no_longer_proofs_than_a_report_takes() -> None:
    convicted = ConvictedVoters(ME)
    assert not convicted.take(_convicted(LIAR, b"x" * (MAX_SIGNED_BYTES + 1)))
    for number in range(MAX_CONVICTED + 5):
        convicted.take(_convicted(PeerId(f"liar {number}")))
    assert len(convicted.proofs) == len(convicted.waiting) == MAX_CONVICTED


def _false_sum(reducer: PeerId) -> SumConvicted:
    notice = FalseSum(UnitName("unit"), CommitId(b"b" * 32), reducer, Root(b"r" * 32), b"p" * 32)
    return SumConvicted(notice, "signed a false sum of chunk 7 on base 62626262")


def test_a_reducer_of_a_false_sum_is_expelled_and_told_of_as_a_voter_is() -> None:
    expelled: list[PeerId] = []
    convicted = ConvictedVoters(ME, expelled.extend)
    with capture_logs() as said:
        assert convicted.take(_false_sum(LIAR))
        assert not convicted.take(_false_sum(LIAR)), "it is known"
    assert expelled == [LIAR]
    assert [(line["event"], line["reason"]) for line in said] == [
        ("reducer_convicted", "it signed a false sum of chunk 7 on base 62626262; it is out, and the host hears of it")
    ]
    assert convicted.sentence == f"signed false sums and are out: {peer_name(LIAR)}"
    brought = convicted.next_for_host
    assert [notice.reducer for notice in brought.false_sums] == [LIAR]
    convicted.host_has(brought)
    assert convicted.next_for_host == NO_PROOFS


def test_audits_are_counted_and_convict_nobody() -> None:
    convicted = ConvictedVoters(ME)
    for report in (SumsAudited(3, 1000), SumsAudited(1, 10, 1), SumNotShown(LIAR, "nobody showed it")):
        assert not convicted.take(report)
    assert (convicted.num_audited, convicted.audited_bytes, convicted.num_not_shown) == (4, 1010, 1)
    assert convicted.sentence == ""


def test_both_kinds_of_proofs_fit_into_one_report() -> None:
    convicted = ConvictedVoters(ME)
    for number in range(MAX_FALSE_SUMS + 2):
        convicted.take(_false_sum(PeerId(f"reducer {number}")))
        convicted.take(_convicted(PeerId(f"voter {number}")))
    brought = convicted.next_for_host
    assert (len(brought.double_votes), len(brought.false_sums)) == (MAX_DOUBLE_VOTES, MAX_FALSE_SUMS)
    assert "; " in convicted.sentence
