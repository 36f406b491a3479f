"""The open door of a run: strangers with the answer to a puzzle get short credentials, and everything else is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

from coordinator.admission.open_door import QUESTIONS
from coordinator.ledger.juniors import DayOfWork, add_work, juniors
from coordinator.ledger.verdict_rows import put_verdict
from coordinator.policy.door import DAY_S, PREFIX_PAUSE_S
from coordinator.policy.standing_core import WorkDay
from coordinator.progress.run_core import Phase
from protocol.errors import PotluckError, RefusedError, RemoteProtocolError, TemporaryError
from protocol.host.calls import decode_admit_reply
from protocol.host.reports import HeldoutResult, PeerReport
from protocol.host.work_verdict import VERDICT_DOMAIN, encode_verdict, verdict_of
from protocol.identity.credential import (
    Credential,
    CredentialRequest,
    check_credential,
    make_request,
    make_tls_key,
    open_request,
)
from protocol.identity.identity import Identity
from protocol.identity.puzzle import Challenge, find_answer, is_answer, read_challenge
from protocol.identity.standing import PeerStanding
from protocol.ids import PROTOCOL_VERSION, CommitId, PeerId, Root
from protocol.pb import coordinator_pb2 as pb
from protocol.run.manifest import open_manifest
from tests.coordinator.chain_world import PEERS, VERIFIER
from tests.coordinator.host_world import RUN_TOML, UNIT, HostWorld, open_host

OPEN = """
robust = "clip-agree"
[admission]
open = true
puzzle_bits = 2
max_strangers = 6
prefix_places = 2
prefix_daily = 3
"""
TOML = RUN_TOML.replace("[checkpoint]", OPEN + "[checkpoint]")
READY = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)
HOME = "192.0.2.7"


def _strangers(count: int) -> list[Identity]:
    return [Identity(bytes([100 + number]) * 32) for number in range(count)]


@asynccontextmanager
async def _host(folder: Path, toml: str = TOML) -> AsyncIterator[HostWorld]:
    with open_host(folder, toml=toml) as host:
        assert host.door is not None
        await host.door.restore()
        yield host


async def _challenge(host: HostWorld, peer: Identity, **changes: object) -> Challenge:
    values: dict[str, object] = {
        "protocol_version": PROTOCOL_VERSION,
        "run_id": host.run_id,
        "unix_s": host.clock.unix_s(),
        "public_key": peer.public_key,
    }
    request = pb.ChallengeRequest(**{**values, **changes}).SerializeToString()
    return read_challenge(pb.ChallengeReply.FromString(await host.service.strangers.challenge(request)).challenge)


def _answer(host: HostWorld, peer: Identity, challenge: Challenge) -> int:
    answer = find_answer(challenge, host.run_id, peer.public_key, 0, 10_000)
    assert answer is not None
    return answer


async def _enter(host: HostWorld, peer: Identity, challenge: Challenge, answer: int, caller: str = HOME) -> bytes:
    now = host.clock.unix_s()
    request = pb.EnterRequest(
        protocol_version=PROTOCOL_VERSION,
        run_id=host.run_id,
        credential_request=make_request(peer, host.run_id, make_tls_key(), now),
        unix_s=now,
        challenge=challenge.raw,
        answer=answer,
    )
    return decode_admit_reply(await host.service.strangers.enter(request.SerializeToString(), caller)).credential


async def _come(host: HostWorld, peer: Identity, caller: str = HOME) -> Credential:
    """A stranger that does what it is asked to."""
    await trio.sleep(PREFIX_PAUSE_S)
    challenge = await _challenge(host, peer)
    return _checked(host, peer, await _enter(host, peer, challenge, _answer(host, peer, challenge), caller))


def _checked(host: HostWorld, peer: Identity, credential: bytes) -> Credential:
    ca, now = host.authority.certificate_der, host.clock.unix_s()
    return check_credential(credential, ca, peer_id=peer.peer_id, run_id=host.run_id, now_unix_s=now)


async def _renew(host: HostWorld, peer: Identity) -> Credential:
    now = host.clock.unix_s()
    csr = make_request(peer, host.run_id, make_tls_key(), now)
    body = pb.RenewRequest(protocol_version=PROTOCOL_VERSION, run_id=host.run_id, credential_request=csr, unix_s=now)
    reply = pb.RenewReply.FromString(await host.service.renew(body.SerializeToString()))
    return _checked(host, peer, reply.credential)


def _work(host: HostWorld, peer: Identity, days: Sequence[int], credited: int = 100, brought: int = 100) -> None:
    work = [DayOfWork(peer.peer_id, WorkDay(day, credited, brought)) for day in days]
    add_work(host.ledger, work, 1)


async def test_a_stranger_that_solves_its_puzzle_gets_a_short_credential_and_the_runs_papers(
    tmp_path: Path, autojump_clock: object
) -> None:
    (stranger,) = _strangers(1)
    async with _host(tmp_path) as host:
        credential = await _come(host, stranger)
        assert credential.standing is PeerStanding.STRANGER
        assert credential.not_after_unix_s - host.clock.unix_s() == pytest.approx(3600.0, abs=1.0)
        assert juniors(host.ledger) == {stranger.peer_id: PeerStanding.STRANGER}


async def test_the_answer_of_another_key_a_wrong_one_and_one_given_before_are_refused(
    tmp_path: Path, autojump_clock: object
) -> None:
    one, other = _strangers(2)
    async with _host(tmp_path, TOML.replace("puzzle_bits = 2", "puzzle_bits = 5")) as host:
        challenge = await _challenge(host, one)
        answer = _answer(host, one, challenge)
        # one number in 32 answers, so the next one may
        wrong = next(n for n in count(answer + 1) if not is_answer(challenge, host.run_id, one.public_key, n))
        with pytest.raises(RefusedError, match="did not make for this peer"):
            await _enter(host, other, challenge, answer)
        with pytest.raises(RefusedError, match="wrong answer"):
            await _enter(host, one, challenge, wrong)
        await trio.sleep(PREFIX_PAUSE_S)
        with pytest.raises(RefusedError, match="answered before"):
            await _enter(host, one, challenge, answer)
        assert juniors(host.ledger) == {}


async def test_a_replayed_answer_admits_nobody_twice(tmp_path: Path, autojump_clock: object) -> None:
    (one,) = _strangers(1)
    async with _host(tmp_path) as host:
        challenge = await _challenge(host, one)
        answer = _answer(host, one, challenge)
        await _enter(host, one, challenge, answer)
        await trio.sleep(PREFIX_PAUSE_S)
        with pytest.raises(RefusedError, match="answered before"):
            await _enter(host, one, challenge, answer)


async def test_a_challenge_ends_and_one_of_an_earlier_process_of_the_host_is_unknown(
    tmp_path: Path, autojump_clock: object
) -> None:
    (one,) = _strangers(1)
    async with _host(tmp_path) as host:
        challenge = await _challenge(host, one)
        answer = _answer(host, one, challenge)
        await trio.sleep(1000)
        with pytest.raises(RefusedError, match="holds no more"):
            await _enter(host, one, challenge, answer)
        late = await _challenge(host, one)
    async with _host(tmp_path) as host:
        with pytest.raises(RefusedError, match="did not make"):
            await _enter(host, one, late, 0)


async def test_a_prefix_has_few_places_and_another_prefix_has_its_own(tmp_path: Path, autojump_clock: object) -> None:
    async with _host(tmp_path) as host:
        first, second, third, fourth = _strangers(4)
        await _come(host, first)
        await _come(host, second, "192.0.2.99")
        with pytest.raises(TemporaryError, match="2 strangers of your part of the network are in the run"):
            await _come(host, third)
        assert (await _come(host, fourth, "198.51.100.1")).standing is PeerStanding.STRANGER


async def test_a_prefix_brings_few_newcomers_a_day_though_its_places_are_free_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with _host(tmp_path) as host:
        *some, late = _strangers(4)
        for each in some:
            await _come(host, each)
            await trio.sleep(3600)
        with pytest.raises(TemporaryError, match="3 strangers of your part of the network came within a day"):
            await _come(host, late)
        await trio.sleep(DAY_S)
        await _come(host, late)


async def test_when_all_places_are_taken_keepers_still_come_in_by_invite(
    tmp_path: Path, autojump_clock: object
) -> None:
    toml = TOML.replace("[model]", "max_members = 2\nmin_members = 1\nmax_peers = 2\n[model]").replace(
        "max_strangers = 6", "max_strangers = 1"
    )
    async with _host(tmp_path, toml) as host:
        one, other = _strangers(2)
        await _come(host, one)
        await host.service.report(host.report(one, READY))
        with pytest.raises(TemporaryError, match="all 1 place for strangers are taken"):
            await _come(host, other, "198.51.100.1")
        host.invite()
        for keeper in PEERS[:2]:
            await host.service.admit(host.admit_request(keeper))
            await host.service.report(host.report(keeper, READY))


async def test_without_counted_work_a_credential_is_not_renewed_and_the_place_is_free_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with _host(tmp_path) as host:
        (one,) = _strangers(1)
        await _come(host, one)
        with pytest.raises(RefusedError, match="no work of yours was counted"):
            await _renew(host, one)
        await host.service.report(host.report(one, READY))
        await trio.sleep(3601)
        with pytest.raises(RefusedError, match="is not admitted"):
            await host.service.report(host.report(one, READY))
        with pytest.raises(RefusedError, match="join again with the run's open line"):
            await _renew(host, one)
        with pytest.raises(RefusedError, match="join again with the run's open line"):
            await host.service.admit(host.admit_request(one, invite_secret=b""))
        assert (await _come(host, one)).standing is PeerStanding.STRANGER


async def test_counted_work_renews_a_credential_for_longer_and_makes_a_member_after_some_days(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with _host(tmp_path) as host:
        (one,) = _strangers(1)
        await _come(host, one)
        _work(host, one, [1])
        renewed = await _renew(host, one)
        assert renewed.standing is PeerStanding.STRANGER
        assert renewed.not_after_unix_s - host.clock.unix_s() == pytest.approx(6 * 3600.0, abs=1.0)
        with pytest.raises(RefusedError, match="no work of yours was counted"):
            await _renew(host, one)
        _work(host, one, [2, 3])
        assert (await _renew(host, one)).standing is PeerStanding.MEMBER
        assert host.door is not None
        assert not host.tracker.standings.has_vote(one.peer_id)


def _verdicts(host: HostWorld, contributor: PeerId, gaps: Sequence[float], first: int = 0) -> None:
    """Verdicts of three keepers by turns, one for each of as many commits."""
    for number, gap in enumerate(gaps, first):
        commit = CommitId(number.to_bytes(32, "big"))
        verdict = verdict_of(UNIT, commit, contributor, Root(bytes(32)), gap=gap, length_ratio=1.0)
        put_verdict(host.ledger, PEERS[number % 3].peer_id, verdict, now_unix_s=int(host.clock.unix_s()))


async def test_work_that_auditors_did_again_makes_a_member_on_the_first_day(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with _host(tmp_path) as host:
        (one,) = _strangers(1)
        await _come(host, one)
        _work(host, one, [1])
        _verdicts(host, PeerId("keeper"), [0.2] * 10)
        _verdicts(host, one.peer_id, [0.2] * 10)
        assert (await _renew(host, one)).standing is PeerStanding.MEMBER
        _verdicts(host, one.peer_id, [0.0], first=10)
        _work(host, one, [1])
        assert (await _renew(host, one)).standing is PeerStanding.MEMBER, "one auditor may err"
        assert host.door is not None
        trust = host.door.trust[one.peer_id]
        assert (trust.standing, trust.audited.num_passes, trust.audited.num_fails) == (PeerStanding.MEMBER, 10, 1)


async def test_a_peer_whose_work_two_auditors_did_not_find_gets_no_credential_for_a_day_and_is_told_why(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with _host(tmp_path) as host:
        one, other = _strangers(2)
        await _come(host, one)
        await _come(host, other, "198.51.100.1")
        _verdicts(host, PeerId("keeper"), [0.2] * 10)
        for each in (one, other):
            _work(host, each, [1, 2, 3])
        assert (await _renew(host, one)).standing is PeerStanding.MEMBER
        _verdicts(host, one.peer_id, [0.0, 0.01])
        _work(host, one, [3])
        with pytest.raises(RefusedError, match=r"two auditors did your work .* again.*ask the run's owner"):
            await _renew(host, one)
        assert (await _renew(host, other)).standing is PeerStanding.MEMBER, "it concerns nobody else"
        await trio.sleep(12 * 3600)
        with pytest.raises(RefusedError, match="two auditors"):
            await _come(host, one)
        await trio.sleep(12 * 3600)
        await _come(host, one)
        _work(host, one, [4])
        assert (await _renew(host, one)).standing is PeerStanding.STRANGER, "its days of work count no more"


async def test_a_verdict_is_taken_of_admitted_peers_alone_and_of_rounds_that_the_host_knows(
    tmp_path: Path, autojump_clock: object
) -> None:
    verdict = verdict_of(UNIT, CommitId(bytes(32)), PeerId("worker"), Root(bytes(32)), gap=0.1, length_ratio=1.0)
    async with _host(tmp_path) as host:
        (one,) = _strangers(1)
        brought = host.sealed(one, VERDICT_DOMAIN, encode_verdict(verdict))
        with pytest.raises(RefusedError, match="is not admitted"):
            await host.service.verdict(brought)
        await _come(host, one)
        with pytest.raises(TemporaryError, match="not known here"):
            await host.service.verdict(brought)
        assert "Verdict" in host.service.unary_calls()
    invited = tmp_path / "invited"
    invited.mkdir()
    with open_host(invited) as host:
        host.invite()
        await host.service.admit(host.admit_request(PEERS[0]))
        with pytest.raises(RefusedError, match="in a run by invite"):
            await host.service.verdict(host.sealed(PEERS[0], VERDICT_DOMAIN, encode_verdict(verdict)))


async def test_an_invite_makes_a_keeper_of_a_stranger(tmp_path: Path, autojump_clock: object) -> None:
    async with _host(tmp_path) as host:
        (one,) = _strangers(1)
        await _come(host, one)
        host.invite(uses=1)
        reply = decode_admit_reply(await host.service.admit(host.admit_request(one)))
        assert _checked(host, one, reply.credential).standing is PeerStanding.KEEPER
        assert juniors(host.ledger) == {}
        assert host.door is not None
        assert host.tracker.standings.has_vote(one.peer_id)
        assert (await _renew(host, one)).standing is PeerStanding.KEEPER


async def test_strangers_are_no_founders_and_their_word_on_the_loss_counts_nothing(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with _host(tmp_path) as host:
        strangers = _strangers(2)
        for each in strangers:
            await _come(host, each)
            await host.service.report(host.report(each, READY))
        await trio.sleep(30)
        await host.tracker.tick()
        assert host.tracker.state.phase is Phase.GATHERING
        host.invite()
        for keeper in PEERS[:2]:
            await host.service.admit(host.admit_request(keeper))
            await host.service.report(host.report(keeper, READY))
        await trio.sleep(10)
        await host.tracker.tick()
        assert host.tracker.chain is not None
        genesis = host.tracker.chain.head
        assert set(genesis.roster) == {keeper.peer_id for keeper in PEERS[:2]}
        loss = HeldoutResult(genesis.commit, 0, 0, 0.001)
        said = PeerReport("training", "", UNIT, head=genesis.commit, heldout=(loss,))
        await host.service.report(host.report(strangers[0], said))
        assert host.tracker.picture().loss_points == ()


async def test_a_host_with_an_old_copy_of_its_ledger_makes_no_keeper_of_a_stranger(
    tmp_path: Path, autojump_clock: object
) -> None:
    (one,) = _strangers(1)
    async with _host(tmp_path) as host:
        await trio.sleep(PREFIX_PAUSE_S)
        challenge = await _challenge(host, one)
        credential = await _enter(host, one, challenge, _answer(host, one, challenge))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "ca.der").write_bytes((tmp_path / "ca.der").read_bytes())
    async with _host(tmp_path / "copy") as host:
        sealed = pb.Sealed.FromString(host.report(one, READY))
        sealed.credential = credential
        await host.service.report(sealed.SerializeToString())
        assert juniors(host.ledger) == {one.peer_id: PeerStanding.STRANGER}


async def test_a_run_by_invite_has_no_door(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        with pytest.raises(RefusedError, match="a stranger at a run by invite"):
            await _challenge(host, PEERS[0])
        assert host.tracker.standings.has_vote(PeerId("anybody"))


@pytest.mark.parametrize(
    ("changes", "says"), [({"run_id": b"x" * 32}, "another run"), ({"unix_s": 0.0}, "minutes behind the host's")]
)
async def test_a_request_that_does_not_fit_the_run_gets_no_puzzle(
    changes: dict[str, object], says: str, tmp_path: Path, autojump_clock: object
) -> None:
    async with _host(tmp_path) as host:
        with pytest.raises(PotluckError, match=says):
            await _challenge(host, PEERS[0], **changes)


async def test_junk_at_the_door_is_refused_and_does_no_harm(tmp_path: Path, autojump_clock: object) -> None:
    async with _host(tmp_path) as host:
        with pytest.raises(RemoteProtocolError):
            await host.service.strangers.enter(b"\xff" * 40, HOME)
        with pytest.raises(RefusedError, match="a public key of 9 bytes"):
            await _challenge(host, PEERS[0], public_key=b"short key")
        now = host.clock.unix_s()
        junk = pb.EnterRequest(
            protocol_version=PROTOCOL_VERSION, run_id=host.run_id, unix_s=now, credential_request=b"x"
        )
        with pytest.raises(RemoteProtocolError):
            await host.service.strangers.enter(junk.SerializeToString(), HOME)


async def test_a_thousand_sybils_take_the_places_that_one_owner_has_and_a_keeper_comes_in_among_them(
    tmp_path: Path, autojump_clock: object
) -> None:
    """From one prefix, and from fifty, each with the right answer: never more are in than the rules allow."""
    async with _host(tmp_path, TOML.replace("puzzle_bits = 2", "puzzle_bits = 0")) as host:
        assert host.door is not None
        host.invite()
        now, refused = host.clock.unix_s(), Counter[str]()
        csr = open_request(
            make_request(PEERS[0], host.run_id, make_tls_key(), now),
            verifier=VERIFIER,
            run_id=host.run_id,
            now_unix_s=now,
        ).csr
        for number in range(1000):
            each = Identity((number + 1).to_bytes(32, "big"))
            caller = HOME if number < 500 else f"203.0.{number % 50}.1"
            challenge = host.door.challenge(each.public_key)
            try:
                await host.door.enter(CredentialRequest(each.peer_id, csr), challenge.raw, 0, caller)
            except TemporaryError as error:
                refused[error.found.lstrip("0123456789")] += 1
            if number == 700:
                await host.service.admit(host.admit_request(PEERS[0]))
            await trio.sleep(0.6)
        assert len(juniors(host.ledger)) == 6
        assert sum(refused.values()) == 994
        assert len(refused) == 3, "too many of one prefix, a crowd, and no place"
        assert host.tracker.standings.has_vote(PEERS[0].peer_id)


async def test_anybody_may_ask_what_an_open_run_is_and_not_too_often(tmp_path: Path, autojump_clock: object) -> None:
    (stranger,) = _strangers(1)

    async def described(host: HostWorld) -> bytes:
        sealed = pb.Sealed.FromString(host.sealed(stranger, "potluck probe"))
        request = pb.DescribeRequest(sealed=sealed).SerializeToString()
        return pb.DescribeReply.FromString(await host.service.describe(request)).manifest

    async with _host(tmp_path) as host:
        for _ in range(QUESTIONS):
            assert open_manifest(await described(host), verifier=VERIFIER, expected_run_id=host.run_id)
        with pytest.raises(TemporaryError, match="a crowd at the door"):
            await described(host)
        await trio.sleep(1.0)
        await described(host)
    (tmp_path / "by invite").mkdir()
    with open_host(tmp_path / "by invite") as host, pytest.raises(RefusedError, match="is not admitted"):
        await described(host)
