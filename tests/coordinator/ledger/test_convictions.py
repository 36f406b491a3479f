from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coordinator.ledger import recorded_bans
from protocol.errors import StorageError
from protocol.host.report_bytes import decode_report_reply
from protocol.host.reports import AckPair, PeerReport, Proofs
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.identity.revocation import open_revocation
from protocol.ids import CommitId, Root, RunId
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import encode_claim
from protocol.rounds.messages.lane_parts import MAX_PARTS, LanePart
from protocol.rounds.messages.messages import Ack, Member
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import ContributionHeader
from protocol.rounds.messages.wire import encode_message
from tests.coordinator.admission.test_service import start
from tests.coordinator.chain_world import HOST, PEERS, VERIFIER, Chain
from tests.coordinator.host_world import UNIT, HostWorld, open_host

VOTER, WITNESS = PEERS[0], PEERS[1]
BASE, ONE, OTHER = (CommitId(name * 32) for name in (b"b", b"1", b"2"))


def _ack(identity: Identity, run_id: RunId, attempt: int, commit: CommitId, before: CommitId | None = None) -> bytes:
    ack = Ack(UNIT, BASE, Ballot(attempt, WITNESS.peer_id), commit, version=1)
    if before is not None:
        ack = replace(ack, before=Ballot(attempt - 1, WITNESS.peer_id), before_commit=before)
    return seal(identity, ROUND_DOMAIN, run_id, 0, NEVER_MS, encode_message(ack))


def _double_vote(host: HostWorld, identity: Identity = VOTER) -> AckPair:
    return AckPair(*(_ack(identity, host.run_id, attempt, commit) for attempt, commit in ((0, ONE), (1, OTHER))))


def _two_claims(host: HostWorld, num_lanes: int) -> AckPair:
    lanes = tuple(LanePart(number, 1, 1) for number in range(num_lanes))
    member = Member(VOTER.peer_id, 1, 1)
    claims = (
        ContributionHeader(UNIT, BASE, member, num_lanes, "int8", Root(root * 32), BASE, Root(b"s" * 32), lanes)
        for root in (b"1", b"2")
    )
    return AckPair(*(seal(VOTER, ROUND_DOMAIN, host.run_id, 0, NEVER_MS, encode_claim(claim)) for claim in claims))


def _showing(*pairs: AckPair) -> PeerReport:
    return PeerReport("training", "", UNIT, proofs=Proofs(pairs))


async def test_a_proven_double_vote_bans_the_voter_and_the_answer_brings_the_ban_with_the_proof_in_words(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await start(host)
        with capture_logs() as said:
            raw = await host.service.report(host.report(WITNESS, _showing(_double_vote(host))))
            await host.service.report(host.report(WITNESS, _showing(_double_vote(host))))
        assert [line["event"] for line in said].count("voter_convicted") == 1
        (entry,) = decode_report_reply(raw).revocations
        ban = open_revocation(entry, verifier=VERIFIER, run_id=host.run_id, host_public_key=HOST.public_key)
        assert ban.peer == VOTER.peer_id
        assert ban.reason == "acked 31313131 and 32323232 on base 62626262, and the later ack hides the earlier"
        assert host.tracker.picture().num_bans == 1
        await host.service.report(host.report(VOTER, _showing()))
        assert host.tracker.peers[VOTER.peer_id].report.state == "left"
        assert host.ledger.is_admitted(WITNESS.peer_id)


@pytest.mark.parametrize("num_lanes", [1, MAX_PARTS])
async def test_two_claims_of_one_process_ban_it_also_with_as_many_lanes_as_a_claim_may_have(
    tmp_path: Path, autojump_clock: object, num_lanes: int
) -> None:
    with open_host(tmp_path) as host:
        await start(host)
        await host.service.report(host.report(WITNESS, _showing(_two_claims(host, num_lanes))))
        assert host.ledger.is_banned(VOTER.peer_id)


async def test_what_proves_nothing_bans_nobody(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        await start(host)
        first, run = _ack(VOTER, host.run_id, 0, ONE), host.run_id
        honest = AckPair(first, _ack(VOTER, run, 1, OTHER, before=ONE))
        of_two = AckPair(first, _ack(WITNESS, run, 1, OTHER))
        elsewhere = AckPair(first, _ack(VOTER, RunId(b"x" * 32), 1, OTHER))
        stranger = _double_vote(host, Identity(b"z" * 32))
        for pair in (honest, of_two, elsewhere, stranger, AckPair(b"", b"no envelope")):
            await host.service.report(host.report(WITNESS, _showing(pair)))
        assert host.ledger.revocations() == []


async def test_a_ban_that_the_ledger_refuses_leaves_the_report_to_be_sent_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await start(host)
        full = "CREATE TRIGGER full BEFORE INSERT ON revocations BEGIN SELECT RAISE(ABORT, 'full'); END"
        host.ledger._db.execute(full)
        with pytest.raises(StorageError, match="full"):
            await host.service.report(host.report(WITNESS, _showing(_double_vote(host))))
        host.ledger._db.execute("DROP TRIGGER full")
        await host.service.report(host.report(WITNESS, _showing(_double_vote(host))))
        assert host.ledger.is_banned(VOTER.peer_id)


async def test_with_as_many_bans_as_anybody_keeps_a_line_says_so_and_reports_go_on(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_bans, "MAX_REVOCATIONS", 0)
    with open_host(tmp_path) as host:
        await start(host)
        with capture_logs() as said:
            await host.service.report(host.report(WITNESS, _showing(_double_vote(host))))
        (line,) = [line for line in said if line["event"] == "voter_convicted"]
        assert "ban number 1" in line["trouble"]
        assert host.ledger.is_admitted(VOTER.peer_id)


def _bringing(chain: Chain) -> PeerReport:
    commit, index, _ = chain.head
    return PeerReport("training", "", UNIT, head=commit, index=index, certificates=tuple(chain.certificates))


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_voters_of_both_sides_of_a_fork_that_the_host_records_are_banned(
    tmp_path: Path, autojump_clock: object, *, is_restarted: bool
) -> None:
    with open_host(tmp_path) as host:
        trunk = replace(await start(host), hides_acks=True)
        trunk.commit((10, 10, 10), voters=3)
        ours, theirs = trunk.clone(), trunk.clone()
        ours.commit((10, 10, 10), voters=2)
        theirs.commit((20, 20, 20), voters=3)
        await host.service.report(host.report(PEERS[2], _bringing(ours)))
        assert host.ledger.revocations() == []
        if not is_restarted:
            await host.service.report(host.report(PEERS[2], _bringing(theirs)))
            assert [host.ledger.is_banned(peer.peer_id) for peer in PEERS] == [True, True, False]
    if is_restarted:
        with open_host(tmp_path) as host:
            await host.tracker.restore()
            await host.service.report(host.report(PEERS[2], _bringing(theirs)))
            assert [host.ledger.is_banned(peer.peer_id) for peer in PEERS] == [True, True, False]


async def test_both_sides_of_a_fork_in_one_report_convict_as_well_and_a_lone_side_convicts_nobody(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        trunk = replace(await start(host), hides_acks=True)
        ours, lone, theirs = trunk.clone(), trunk.clone(), trunk.clone()
        ours.commit((10, 10, 10), voters=2)
        lone.members = PEERS[:1]
        lone.commit((5,), voters=1, lone=True)
        both = (*ours.certificates, *lone.certificates)
        await host.service.report(host.report(PEERS[2], replace(_bringing(ours), certificates=both)))
        assert host.ledger.revocations() == []
        theirs.commit((20, 20, 20), voters=2)
        theirs.commit((20, 20, 20), voters=2)
        third = trunk.clone()
        third.commit((30, 30, 30), voters=2)
        both = (*theirs.certificates, *third.certificates)
        await host.service.report(host.report(PEERS[2], replace(_bringing(theirs), certificates=both)))
        assert [host.ledger.is_banned(peer.peer_id) for peer in PEERS] == [True, True, False]
