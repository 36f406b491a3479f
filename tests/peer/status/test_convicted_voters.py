from __future__ import annotations

import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.lineage.round_reports import RoundReason, VoterConvicted
from peer.status.convicted_voters import MAX_CONVICTED, ConvictedVoters
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources, status_of
from protocol.host.reports import MAX_DOUBLE_VOTES, MAX_SIGNED_BYTES
from protocol.identity.names import peer_name
from protocol.ids import PeerId
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
    assert [proof.one.decode() for proof in first] == voters[:MAX_DOUBLE_VOTES]
    convicted.host_has(first)
    assert [proof.one.decode() for proof in convicted.next_for_host] == voters[MAX_DOUBLE_VOTES:]
    convicted.host_has(convicted.next_for_host)
    assert not convicted.take(_convicted(voters[0])), "it is known"
    assert convicted.next_for_host == ()
    assert "and 7 more" in convicted.sentence


def test_no_more_voters_are_remembered_than_a_roster_has_and_no_longer_proofs_than_a_report_takes() -> None:
    convicted = ConvictedVoters(ME)
    assert not convicted.take(_convicted(LIAR, b"x" * (MAX_SIGNED_BYTES + 1)))
    for number in range(MAX_CONVICTED + 5):
        convicted.take(_convicted(PeerId(f"liar {number}")))
    assert len(convicted.proofs) == len(convicted.waiting) == MAX_CONVICTED
