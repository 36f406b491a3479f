"""The coordinator's calls: who is let in, what counts, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from coordinator.ledger.ledger import open_ledger
from coordinator.progress.run_core import Phase
from protocol.errors import (
    PotluckError,
    RefusedError,
    RemoteProtocolError,
    RunOverError,
    SupersededError,
    TemporaryError,
    VersionError,
)
from protocol.host.calls import START_DOMAIN, decode_admit_reply, decode_checkpoints
from protocol.host.host_statements import HostStatements
from protocol.host.report_bytes import decode_report_reply
from protocol.host.report_delta import report_digest, shortened
from protocol.host.reports import HeldoutResult, PeerReport, UnitStanding
from protocol.identity.credential import check_credential, make_request, make_tls_key
from protocol.identity.envelope import first_sequence, open_envelope
from protocol.identity.identity import Identity
from protocol.identity.revocation import Revocation, fingerprint, open_revocation, seal_revocation
from protocol.ids import PROTOCOL_VERSION, CommitId, Root, UnitName
from protocol.pb import coordinator_pb2 as pb
from protocol.run.manifest import open_manifest
from tests.coordinator.chain_world import HOST, PEERS, VERIFIER, Chain
from tests.coordinator.host_world import RUN_TOML, SECRET, UNIT, HostWorld, open_host
from tests.virtual import VirtualClock

READY = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)


async def admit_all(host: HostWorld) -> None:
    host.invite()
    for peer in PEERS:
        await host.service.admit(host.admit_request(peer))


def renew_request(host: HostWorld, peer: Identity) -> bytes:
    now = host.clock.unix_s()
    csr = make_request(peer, host.run_id, make_tls_key(), now)
    body = pb.RenewRequest(protocol_version=PROTOCOL_VERSION, run_id=host.run_id, credential_request=csr, unix_s=now)
    return body.SerializeToString()


async def start(host: HostWorld) -> Chain:
    """Admit three peers, let them be ready; returns the chain that they will grow."""
    await admit_all(host)
    for peer in PEERS:
        await host.service.report(host.report(peer, PeerReport("joining", "fetching data", UNIT)))
    for peer in PEERS:
        await host.service.report(host.report(peer, READY))
    return chain_of(host)


def chain_of(host: HostWorld) -> Chain:
    sealed = host.tracker.start_record
    envelope = open_envelope(sealed, verifier=VERIFIER, domain=START_DOMAIN, run_id=host.run_id, now_unix_ms=None)
    return Chain(host.run_id, given_start=envelope.payload)


async def test_clock_tells_time_version_and_run(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        reply = pb.ClockReply.FromString(await host.service.clock(b""))
        assert (reply.unix_s, reply.protocol_version, reply.run_id) == (
            host.clock.unix_s(),
            PROTOCOL_VERSION,
            host.run_id,
        )


async def test_newcomer_gets_credential_manifest_and_data(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        host.invite(uses=1)
        reply = decode_admit_reply(await host.service.admit(host.admit_request(PEERS[0])))
        check_credential(
            reply.credential,
            host.authority.certificate_der,
            peer_id=PEERS[0].peer_id,
            run_id=host.run_id,
            now_unix_s=host.clock.unix_s(),
        )
        assert open_manifest(reply.manifest, verifier=VERIFIER, expected_run_id=host.run_id) == host.manifest
        assert (reply.dataset, reply.start_record) == (b"{}", b"")
        with pytest.raises(RefusedError, match="used 1 of 1"):
            await host.service.admit(host.admit_request(PEERS[1]))
        again = decode_admit_reply(await host.service.admit(host.admit_request(PEERS[0], invite_secret=b"")))
        assert again.credential != reply.credential


async def test_a_full_run_lets_a_peer_that_is_here_in_again_and_refuses_a_newcomer(
    tmp_path: Path, autojump_clock: object
) -> None:
    toml = RUN_TOML.replace("[model]", "max_members = 2\nmax_peers = 2\n[model]")
    with open_host(tmp_path, toml=toml) as host:
        host.invite()
        for peer in PEERS[:2]:
            await host.service.admit(host.admit_request(peer))
            await host.service.report(host.report(peer, READY))
        assert decode_admit_reply(await host.service.admit(host.admit_request(PEERS[0]))).credential
        with pytest.raises(TemporaryError, match="the run is full, with 2 peers"):
            await host.service.admit(host.admit_request(PEERS[2]))


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"protocol_version": 99}, VersionError, "version 99"),
        ({"run_id": b"x" * 32}, RefusedError, "another run"),
        ({"unix_s": 0.0}, RefusedError, "behind"),
        ({"invite_secret": b"guess"}, RefusedError, "did not make"),
        ({"credential_request": b"junk"}, RemoteProtocolError, "envelope"),
    ],
)
async def test_bad_admissions_are_refused_with_their_reason(
    tmp_path: Path, autojump_clock: object, changes: dict[str, object], kind: type[PotluckError], says: str
) -> None:
    with open_host(tmp_path) as host:
        host.invite()
        with pytest.raises(kind, match=says):
            await host.service.admit(host.admit_request(PEERS[0], **changes))


async def test_expired_invite_is_refused(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        host.invite(life_s=60)
        await trio.sleep(120)
        with pytest.raises(RefusedError, match="expired 1 minutes ago"):
            await host.service.admit(host.admit_request(PEERS[0]))


async def test_credential_is_renewed_for_the_admitted_only(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        with pytest.raises(RefusedError, match="never admitted"):
            await host.service.renew(renew_request(host, PEERS[0]))
        await admit_all(host)
        assert pb.RenewReply.FromString(await host.service.renew(renew_request(host, PEERS[0]))).credential


async def test_reports_of_strangers_replays_and_stale_ones_are_refused(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        with pytest.raises(RefusedError, match="not admitted"):
            await host.service.report(host.report(PEERS[0], READY))
        await admit_all(host)
        report = host.report(PEERS[0], READY)
        await host.service.report(report)
        with pytest.raises(RemoteProtocolError, match="repeated"):
            await host.service.report(report)
        old = host.report(PEERS[0], READY)
        await trio.sleep(120)
        with pytest.raises(RemoteProtocolError, match="expired"):
            await host.service.report(old)


async def test_a_short_report_says_what_its_sender_said_last_and_none_is_believed_that_is_like_nothing_known(
    tmp_path: Path, autojump_clock: object
) -> None:
    reported = PeerReport("training", "training", UNIT, tokens_ready=5, version="1.2.3")
    with open_host(tmp_path) as host:
        await admit_all(host)
        reply = decode_report_reply(await host.service.report(host.report(PEERS[0], reported)))
        assert reply.like == report_digest(reported)
        again = shortened(replace(reported, tokens_ready=9))
        assert decode_report_reply(await host.service.report(host.report(PEERS[0], again))).like == reply.like
        assert host.tracker.peers[PEERS[0].peer_id].report == replace(reported, tokens_ready=9)
        for peer, report in ((PEERS[1], again), (PEERS[0], shortened(replace(reported, state="paused")))):
            with pytest.raises(RemoteProtocolError, match="a short report with an unknown base"):
                await host.service.report(host.report(peer, report))
        assert host.tracker.peers[PEERS[0].peer_id].report.state == "training"
    with open_host(tmp_path) as host:
        host.sequence = 100
        with pytest.raises(RemoteProtocolError, match="a short report with an unknown base"):
            await host.service.report(host.report(PEERS[0], again))


async def test_a_process_that_a_newer_one_with_its_identity_has_followed_is_told_so(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await admit_all(host)
        host.sequence = first_sequence(2000)
        await host.service.report(host.report(PEERS[0], READY))
        newer = host.sequence
        host.sequence = first_sequence(1999) + 500
        with pytest.raises(SupersededError, match="newer session; expected one process"):
            await host.service.report(host.report(PEERS[0], READY))
        await host.service.report(host.report(PEERS[1], READY))  # another peer's sessions are its own
        host.sequence = newer
        await host.service.report(host.report(PEERS[0], READY))


def ban(host: HostWorld, peer: Identity) -> bytes:
    """As `potluck ban` beside a running host: another connection to the same ledger."""
    with open_ledger(host.ledger.path) as ledger:
        entry = ledger.ban(
            peer.peer_id,
            "equivocation",
            lambda number: seal_revocation(
                HOST, host.run_id, Revocation(peer.peer_id, "equivocation", int(host.clock.unix_s()), number)
            ),
        )
    assert entry is not None
    return entry


async def test_a_ban_beside_the_running_host_counts_from_the_next_call_on(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await admit_all(host)
        ban(host, PEERS[0])
        with pytest.raises(RefusedError, match="banned"):
            await host.service.admit(host.admit_request(PEERS[0]))
        with pytest.raises(RefusedError, match="banned"):
            await host.service.renew(renew_request(host, PEERS[0]))
        for domain in ("potluck list", "potluck watch"):
            call = host.service.list_checkpoints if domain == "potluck list" else host.service.open_watch
            with pytest.raises(RefusedError, match="banned"):
                await call(host.sealed(PEERS[0], domain))
        assert await host.service.renew(renew_request(host, PEERS[1]))


class _History:
    """The milestones of a run's history."""

    def newest(self) -> tuple[bytes, ...]:
        return (b"newest",)

    def lacking(self, known: bytes, units: Sequence[UnitName]) -> tuple[bytes, ...]:
        return () if known else tuple(unit.encode() for unit in units)


async def test_newcomers_and_peers_that_lack_them_are_given_the_newest_milestones(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        host.tracker.history = _History()  # type: ignore[assignment]
        await admit_all(host)
        reply = decode_admit_reply(await host.service.admit(host.admit_request(PEERS[0])))
        assert reply.milestones == (b"newest",)
        beside = (UnitStanding(UnitName("expert-1"), CommitId(b"c" * 32), Root(b"r" * 32)),)
        said = decode_report_reply(await host.service.report(host.report(PEERS[1], replace(READY, beside=beside))))
        assert said.milestones == (b"fragment-0", b"expert-1")
        knowing = replace(READY, signed=HostStatements(known_milestones=bytes(8)))
        assert decode_report_reply(await host.service.report(host.report(PEERS[1], knowing))).milestones == ()


async def test_every_report_is_answered_with_the_bans_that_its_peer_lacks(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await admit_all(host)
        assert decode_report_reply(await host.service.report(host.report(PEERS[1], READY))).revocations == ()
        entry = ban(host, PEERS[0])
        reply = decode_report_reply(await host.service.report(host.report(PEERS[1], READY)))
        assert reply.revocations == (entry,)
        assert host.tracker.picture().num_bans == 1
        knowing = replace(READY, signed=HostStatements(known_revocations=fingerprint(entry)))
        assert decode_report_reply(await host.service.report(host.report(PEERS[1], knowing))).revocations == ()
        found = open_revocation(
            entry,
            verifier=VERIFIER,
            run_id=host.run_id,
            host_public_key=bytes.fromhex(host.manifest.host_public_key),
        )
        assert (found.peer, found.reason, found.number) == (PEERS[0].peer_id, "equivocation", 1)


async def test_a_banned_peer_is_told_so_and_its_report_counts_as_a_goodbye(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await admit_all(host)
        await host.service.report(host.report(PEERS[0], READY))
        assert PEERS[0].peer_id in host.tracker.live_peers()
        entry = ban(host, PEERS[0])
        for peer in PEERS:
            reply = decode_report_reply(await host.service.report(host.report(peer, READY)))
            assert reply.revocations == (entry,)
        assert PEERS[0].peer_id not in host.tracker.live_peers()
        assert set(chain_of(host).genesis.roster) == {peer.peer_id for peer in PEERS[1:]}


async def test_a_peer_that_an_old_copy_of_the_ledger_forgot_is_known_by_its_credential(
    tmp_path: Path, autojump_clock: object
) -> None:
    for name in ("host", "copy"):
        (tmp_path / name).mkdir()
    with open_host(tmp_path / "host") as host:
        host.invite()
        credential = decode_admit_reply(await host.service.admit(host.admit_request(PEERS[0]))).credential
        report = host.report(PEERS[0], READY)
    shutil.copy(tmp_path / "host" / "ca.der", tmp_path / "copy")
    with open_host(tmp_path / "copy") as host:
        with pytest.raises(RefusedError, match="not admitted"):
            await host.service.report(report)
        stolen = pb.Sealed.FromString(host.report(PEERS[1], READY))
        stolen.credential = credential
        with pytest.raises(RefusedError, match="not admitted"):
            await host.service.report(stolen.SerializeToString())
        shown = pb.Sealed.FromString(report)
        shown.credential = credential
        await host.service.report(shown.SerializeToString())
        assert host.ledger.is_admitted(PEERS[0].peer_id)


async def test_a_banned_peer_does_not_come_back_by_its_credential(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        host.invite()
        credential = decode_admit_reply(await host.service.admit(host.admit_request(PEERS[0]))).credential
        entry = ban(host, PEERS[0])
        shown = pb.Sealed.FromString(host.report(PEERS[0], READY))
        shown.credential = credential
        assert decode_report_reply(await host.service.report(shown.SerializeToString())).revocations == (entry,)
        assert not host.ledger.is_admitted(PEERS[0].peer_id)
        asked = pb.Sealed.FromString(host.sealed(PEERS[0], "potluck list"))
        asked.credential = credential
        with pytest.raises(RefusedError, match="banned"):
            await host.service.list_checkpoints(asked.SerializeToString())


async def test_request_for_one_call_does_not_open_another(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        await admit_all(host)
        with pytest.raises(RemoteProtocolError, match="an envelope for"):
            await host.service.report(host.sealed(PEERS[0], "potluck list"))
        assert decode_checkpoints(await host.service.list_checkpoints(host.sealed(PEERS[0], "potluck list"))) == ()


async def test_probe_wants_a_good_invite_or_an_admitted_peer_and_uses_nothing_up(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        host.invite(uses=1, life_s=60)

        def asking(**proof: object) -> bytes:
            return pb.BandwidthRequest(wanted_bytes=10, padding=b"up", **proof).SerializeToString()

        def sealed(peer: Identity, domain: str) -> pb.Sealed:
            return pb.Sealed.FromString(host.sealed(peer, domain))

        reply = pb.BandwidthReply.FromString(await host.service.bandwidth(asking(invite_secret=SECRET), "10.0.0.1"))
        assert reply.padding == bytes(10)
        with pytest.raises(RefusedError, match="did not make"):
            await host.service.bandwidth(asking(invite_secret=b"guess"), "10.0.0.1")
        with pytest.raises(RefusedError, match="not admitted"):
            await host.service.bandwidth(asking(sealed=sealed(PEERS[0], "potluck probe")), "10.0.0.1")
        await host.service.admit(host.admit_request(PEERS[0]))
        with pytest.raises(RefusedError, match="used 1 of 1"):
            await host.service.bandwidth(asking(invite_secret=SECRET), "10.0.0.1")
        assert await host.service.bandwidth(asking(sealed=sealed(PEERS[0], "potluck probe")), "10.0.0.1")
        with pytest.raises(RemoteProtocolError, match="an envelope for"):
            await host.service.bandwidth(asking(sealed=sealed(PEERS[0], "potluck list")), "10.0.0.1")
        with pytest.raises(RemoteProtocolError):
            await host.service.bandwidth(asking(), "10.0.0.1")
        ban(host, PEERS[0])
        with pytest.raises(RefusedError, match="banned"):
            await host.service.dial_back(
                pb.DialBackRequest(sealed=sealed(PEERS[0], "potluck probe"), port=1).SerializeToString(), "10.0.0.1"
            )
        await trio.sleep(60)
        with pytest.raises(RefusedError, match="expired"):
            await host.service.bandwidth(asking(invite_secret=SECRET), "10.0.0.1")


async def test_probe_of_a_run_that_is_over_says_so(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        chain = await start(host)
        chain.commit()
        chain.commit()
        report = PeerReport("training", "", UNIT, certificates=tuple(chain.certificates))
        assert decode_report_reply(await host.service.report(host.report(PEERS[0], report))).phase == "finished"
        sealed = pb.Sealed.FromString(host.sealed(PEERS[0], "potluck probe"))
        with pytest.raises(RunOverError, match="the run has ended"):
            await host.service.bandwidth(pb.BandwidthRequest(sealed=sealed).SerializeToString(), "10.0.0.1")


async def test_a_report_of_a_peer_that_waits_for_the_start_is_answered_at_once_and_holds_no_call(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        host.invite()
        await host.service.admit(host.admit_request(PEERS[0]))
        begun_s = trio.current_time()
        for _ in range(3):
            reply = decode_report_reply(await host.service.report(host.report(PEERS[0], READY)))
            assert (reply.phase, reply.start.start_record) == ("gathering", b"")
            assert 0 < reply.again_in_s <= 60, "it comes again by itself"
        assert trio.current_time() < begun_s + 0.1, "the ledger's threads are all that it waits for"


async def test_run_starts_when_peers_are_ready_and_watchers_hear_it(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        await admit_all(host)
        before = await host.service.next_news(None)
        assert (before.phase, before.start_record) == ("gathering", b"")
        async with trio.open_nursery() as nursery:
            heard = []

            async def watch() -> None:
                heard.append(await host.service.next_news(before))

            nursery.start_soon(watch)
            for peer in PEERS:
                await host.service.report(host.report(peer, PeerReport("joining", "", UNIT)))
            for peer in PEERS:
                await host.service.report(host.report(peer, READY))
        assert heard[0].phase == "training"
        assert heard[0].start_record == host.tracker.start_record
        assert heard[0].head == chain_of(host).genesis.commit


async def test_quiet_run_still_beats(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        first = await host.service.next_news(None)
        began = trio.current_time()
        await host.service.next_news(first)
        assert trio.current_time() - began == pytest.approx(10.0)


async def test_certificates_in_reports_move_the_run_and_survive_a_restart(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain = await start(host)
        first = chain.commit()
        training = PeerReport(
            "training",
            "",
            UNIT,
            tokens_per_s=100.0,
            loss_nats=3.0,
            certificates=tuple(chain.certificates),
            heldout=(HeldoutResult(first, 999, 999, 2.75), HeldoutResult(chain.genesis.commit, 0, 0, 5.5)),
        )
        reply = decode_report_reply(await host.service.report(host.report(chain.evaluator, training)))
        assert (reply.phase, reply.head, reply.index, reply.want_from_index) == ("training", first, 1, 2)
        chain.commit()
        late = PeerReport("training", "", UNIT, certificates=tuple(chain.certificates[1:]))
        reply = decode_report_reply(await host.service.report(host.report(PEERS[1], late)))
        assert (reply.phase, reply.index) == ("finished", 2)
        assert not reply.is_final_checkpoint_written
        before = host.tracker.news()
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        after = host.tracker.news()
        assert (after.phase, after.head, after.start_record) == ("finished", before.head, before.start_record)
        points = [(p.kind, p.index, p.tokens, p.nats) for p in host.tracker.picture().loss_points]
        # Index and tokens of held-out points are those of the verified commit, not the reporter's.
        assert ("heldout", 1, 600, 2.75) in points
        assert ("heldout", 0, 0, 5.5) in points
        assert [r.row.index for r in host.tracker.picture().rounds] == [1, 2]
        assert host.tracker.state.phase is Phase.FINISHED


async def test_forged_certificate_is_refused_and_changes_nothing(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        chain = await start(host)
        chain.commit(voters=1)
        forged = PeerReport("training", "", UNIT, certificates=tuple(chain.certificates))
        with pytest.raises(RemoteProtocolError, match="quorum"):
            await host.service.report(host.report(PEERS[0], forged))
        assert host.tracker.news().index == 0


async def test_wrong_clock_is_named_before_the_signature_is_called_expired(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        host.invite()
        behind = VirtualClock(skew_s=-900.0).unix_s()
        csr = make_request(PEERS[0], host.run_id, make_tls_key(), behind)
        request = host.admit_request(PEERS[0], unix_s=behind, credential_request=csr)
        with pytest.raises(RefusedError, match="clock is 15 minutes behind"):
            await host.service.admit(request)


async def test_a_ledger_from_before_a_ban_learns_of_it_from_a_peer_that_kept_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    newer, copy = tmp_path / "newer", tmp_path / "copy"
    newer.mkdir()
    with open_host(newer) as host:
        await admit_all(host)
    shutil.copytree(newer, copy)
    with open_host(newer) as host:
        entry = ban(host, PEERS[0])
    with open_host(copy) as host:
        assert host.ledger.is_admitted(PEERS[0].peer_id)
        knowing = replace(READY, signed=HostStatements(known_revocations=fingerprint(entry)))
        reply = decode_report_reply(await host.service.report(host.report(PEERS[1], knowing)))
        assert (reply.asks_revocations, reply.known_revocations) == (True, b"")
        bringing = replace(knowing, signed=replace(knowing.signed, revocations=(entry, entry)))
        reply = decode_report_reply(await host.service.report(host.report(PEERS[1], bringing)))
        assert (reply.asks_revocations, reply.revocations) == (False, ())
        assert host.ledger.is_banned(PEERS[0].peer_id)
        assert host.ledger.revocations() == [entry]
        with pytest.raises(RefusedError, match="banned"):
            await host.service.renew(renew_request(host, PEERS[0]))


async def test_nobody_brings_a_ban_that_the_host_did_not_sign(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        await admit_all(host)
        forged = seal_revocation(PEERS[1], host.run_id, Revocation(PEERS[0].peer_id, "", 1, 1))
        with pytest.raises(RemoteProtocolError, match="did not sign"):
            await host.service.report(
                host.report(PEERS[1], replace(READY, signed=HostStatements(revocations=(forged,))))
            )
        assert host.ledger.is_admitted(PEERS[0].peer_id)
