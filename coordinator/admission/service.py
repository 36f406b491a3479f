"""The coordinator's calls: bytes in, bytes out, on trio. The gRPC shell around it is coordinator/admission/rpc.py.

Admit and Renew carry an identity-signed request for a credential. Every later call is a signed envelope of an admitted peer. This
file reads requests and writes answers; admission.py and run_core.py decide.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from averaging.release import installed_release
from coordinator.admission.door_calls import DoorCalls
from coordinator.admission.probes import Probes
from coordinator.audits.work_verdicts import WorkVerdicts
from coordinator.ledger.juniors import restore_junior
from coordinator.ledger.ledger import Applicant, Ledger
from coordinator.ledger.recorded_bans import RecordedBans, recorded_bans
from coordinator.policy.admission import (
    AdmissionDecision,
    AdmissionFacts,
    InviteFacts,
    ban_error,
    decide_admission,
    decide_renewal,
    invite_error,
    request_error,
    run_over_error,
)
from coordinator.progress.run_core import Phase
from protocol.errors import RefusedError, RemoteProtocolError
from protocol.host.calls import (
    LIST_DOMAIN,
    MAX_REQUEST_BYTES,
    PROBE_DOMAIN,
    REPORT_DOMAIN,
    WATCH_DOMAIN,
    AdmitReply,
    CheckpointEntry,
    RunNews,
    encode_admit_reply,
    encode_checkpoints,
)
from protocol.host.host_statements import NO_GATE_NEWS, RevocationNews
from protocol.host.report_bytes import decode_report, encode_report_reply
from protocol.host.report_delta import made_whole, report_digest
from protocol.host.reports import HELPING, PeerReport
from protocol.host.work_verdict import VERDICT_DOMAIN
from protocol.identity.credential import check_credential, open_request
from protocol.identity.envelope import MAX_GUARDED_SENDERS, Envelope, ReplayGuard, open_envelope, session_of, superseded
from protocol.identity.identity import public_key_from_peer_id
from protocol.identity.invite import hash_secret
from protocol.identity.names import peer_name
from protocol.identity.revocation import fingerprint, has_others, missing, open_revocation
from protocol.ids import PROTOCOL_VERSION, PeerId
from protocol.pb import coordinator_pb2 as pb
from protocol.received import parse
from protocol.scores.score_result import SCORE_DOMAIN

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.admission.hosted_run import HostedRun
    from coordinator.admission.open_door import OpenDoor
    from coordinator.ledger.ledger import Ledger
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.tracker import RunTracker
    from coordinator.scores.task_scores import TaskScores

WATCH_BEAT_S: Final = 10.0
"""A watcher gets a message at least this often, in seconds, so that it can tell a quiet run from a dead coordinator."""


UnaryCall = Callable[[bytes], Awaitable[bytes]]
"""Serialized request -> serialized reply; raises PotluckError to refuse."""

CallFrom = Callable[[bytes, str], Awaitable[bytes]]
"""The same for a call that depends on the IP address it came from."""


class CoordinatorService:
    """Implements the calls of the coordinator's service."""

    def __init__(
        self,
        run: HostedRun,
        tracker: RunTracker,
        ledger: LedgerWriter,
        clock: Clock,
        scores: TaskScores | None = None,
        door: OpenDoor | None = None,
    ) -> None:
        self._scores = scores
        self._door = door
        self._run = run
        self._tracker = tracker
        self._ledger = ledger
        self._clock = clock
        self._release = installed_release()
        domains, most = (REPORT_DOMAIN, LIST_DOMAIN, WATCH_DOMAIN, PROBE_DOMAIN), 2 * run.max_peers
        self._replays = {domain: ReplayGuard(max(MAX_GUARDED_SENDERS, most)) for domain in domains}
        self._bans = RecordedBans()
        self._probes = Probes(clock)
        self._verdicts: WorkVerdicts | None = None
        if door is not None:
            verifier, changed = run.verifier, door.restore
            self._verdicts = WorkVerdicts(tracker, run.run_id, ledger, verifier, clock, lambda: door.juniors, changed)
        self.strangers = DoorCalls(run, tracker, clock, door, self._welcome)
        """The calls of peers without an invite."""

    def unary_calls(self) -> dict[str, UnaryCall]:
        """The calls with one reply, by name."""
        return {
            "Clock": self.clock,
            "Admit": self.admit,
            "Renew": self.renew,
            "Report": self.report,
            "ListCheckpoints": self.list_checkpoints,
            "Describe": self.describe,
            "Score": self.score,
            "Verdict": self.verdict,
            "Challenge": self.strangers.challenge,
        }

    def calls_from(self) -> dict[str, CallFrom]:
        """The calls that depend on the caller's address, by name."""
        return {"DialBack": self.dial_back, "Bandwidth": self.bandwidth, "Enter": self.strangers.enter}

    async def clock(self, request: bytes) -> bytes:
        """The coordinator's clock, versions and run. Needs no credential."""
        parse(pb.ClockRequest, request, MAX_REQUEST_BYTES)
        run_id, release = self._run.run_id, self._release
        now_unix_s = self._clock.unix_s()
        reply = pb.ClockReply(unix_s=now_unix_s, protocol_version=PROTOCOL_VERSION, run_id=run_id, release=release)
        return reply.SerializeToString()

    async def admit(self, request: bytes) -> bytes:
        """Admit a newcomer by its invite, or readmit a peer that returns.

        Raises:
            RefusedError, VersionError, RunOverError, TemporaryError: as admission.py decides.
            RemoteProtocolError: the credential request is malformed or not signed by its identity.
        """
        body = parse(pb.AdmitRequest, request, MAX_REQUEST_BYTES)
        secret_hash = hash_secret(body.invite_secret) if body.invite_secret else b""
        return self._welcome(await self._credential(body, secret_hash, decide_admission))

    def _welcome(self, credential: bytes) -> bytes:
        run, history = self._run, self._tracker.history
        return encode_admit_reply(
            AdmitReply(
                credential=credential,
                manifest=run.signed_manifest,
                dataset=run.dataset,
                start_record=self._tracker.start_record,
                coordinator_peer_id=run.peer_id,
                bootstrap=run.bootstrap(),
                milestones=history.newest() if history is not None else (),
            )
        )

    async def renew(self, request: bytes) -> bytes:
        """A new credential for an admitted peer.

        Raises:
            RefusedError, VersionError, RunOverError, RemoteProtocolError: as `admit`.
        """
        body = parse(pb.RenewRequest, request, MAX_REQUEST_BYTES)
        return pb.RenewReply(credential=await self._credential(body, b"", decide_renewal)).SerializeToString()

    async def _credential(
        self,
        body: pb.AdmitRequest | pb.RenewRequest,
        secret_hash: bytes,
        decide: Callable[[AdmissionFacts, float], AdmissionDecision],
    ) -> bytes:
        run, now = self._run, self._clock.unix_s()
        # Read the tracker here: the ledger calls back from its own thread, where trio's clock is not available.
        is_run_over = self._tracker.state.phase is Phase.FINISHED
        book, monotonic_s = self._tracker.book, self._clock.monotonic_s()
        num_taken = book.places_taken(monotonic_s)
        if self._door is not None:  # strangers have places of their own
            num_taken -= sum(peer in self._door.juniors for peer in book.live(monotonic_s))

        def facts_of(peer: PeerId, invite: InviteFacts | None, is_admitted: bool, is_banned: bool) -> AdmissionFacts:
            return AdmissionFacts(
                peer=peer,
                protocol_version=body.protocol_version,
                is_same_run=body.run_id == run.run_id,
                peer_unix_s=body.unix_s,
                invite=invite,
                is_admitted=is_admitted,
                is_banned=is_banned,
                is_run_over=is_run_over,
                num_live_peers=num_taken,
                max_peers=run.max_peers,
            )

        # Check version, run and clock before the signature. Otherwise a wrong clock would be reported as an expired signature.
        if error := request_error(facts_of(PeerId(""), None, True, False), now):
            raise error
        asked = open_request(body.credential_request, verifier=run.verifier, run_id=run.run_id, now_unix_s=now)
        if self._door is not None and not secret_hash and (credential := await self._door.renew(asked)):
            return credential
        applicant = Applicant(asked.peer_id, public_key_from_peer_id(asked.peer_id), secret_hash)
        # from here on, so that calls at the same time cannot all take the last place
        is_new = decide is decide_admission and book.expect(asked.peer_id, monotonic_s)
        decision, credential = await self._ledger.run(
            lambda ledger: ledger.admit(
                applicant,
                lambda invite, admitted, banned: decide(facts_of(asked.peer_id, invite, admitted, banned), now),
                lambda serial: run.authority.issue(
                    asked, run.run_id, now_unix_s=now, days=run.credential_days, serial=serial
                ),
                now_unix_s=int(now),
            )
        )
        if decision.error is not None:
            if is_new:
                book.expect_no_more(asked.peer_id)
            raise decision.error
        if self._door is not None and secret_hash:
            self._door.forget((asked.peer_id,))
        return credential

    async def report(self, request: bytes) -> bytes:
        """Take in a signed report. The answer carries the host's revocations that the peer lacks, and requests those that an old
        copy of the ledger has lost. A banned peer's report counts as a goodbye.

        Raises:
            RefusedError: the peer was never admitted.
            SupersededError: a later process with the same identity was heard.
            RemoteProtocolError: the report is malformed, replayed or expired, a certificate in it does not verify, or it is a short
                report with an unknown base. After the last one the peer must send a whole report.
        """
        envelope, credential = self._open_envelope(request, REPORT_DOMAIN)
        sender, said = envelope.sender, decode_report(envelope.payload)
        is_banned = await self._standing(envelope, credential, may_be_banned=True)
        self._refuse_replay(envelope, REPORT_DOMAIN)
        report = self._whole(sender, said)
        if report.double_votes or report.revocations:
            await self._tracker.convictions.take(report.double_votes)
            now_unix_s, known = int(self._clock.unix_s()), self._bans
            self._bans = await self._ledger.run(
                lambda ledger: self._with_bans(ledger, report.revocations, now_unix_s, known)
            )
        if not is_banned:
            self._tracker.convictions.sums.heard(sender, report.proofs.false_sums)
        self._tracker.banned = self._bans.peers
        counted = PeerReport("left", "banned by the host", report.unit) if is_banned else report
        like = said.like if counted is report and said.like else report_digest(counted)
        reply = await self._tracker.report(sender, counted, like)
        revocations, history = self._bans.entries, self._tracker.history
        is_asked = has_others(revocations, report.known_revocations)
        units = (report.unit, *(part.unit for part in report.beside))
        return encode_report_reply(
            replace(
                reply,
                like=b"" if report.state == HELPING else like,
                bans=RevocationNews(
                    missing(revocations, report.known_revocations),
                    is_asked,
                    b"".join(map(fingerprint, revocations)) if is_asked else b"",
                ),
                milestones=history.lacking(report.known_milestones, units) if history is not None else (),
                gate=self._tracker.gate.news(report.head) if self._tracker.gate is not None else NO_GATE_NEWS,
            )
        )

    def _whole(self, sender: PeerId, report: PeerReport) -> PeerReport:
        """The whole report, restored from a short one and the sender's last. Raises RemoteProtocolError if the base differs."""
        if not report.like:
            return report
        entry = self._tracker.peers.get(sender)
        if entry is None or entry.like != report.like:
            raise RemoteProtocolError(
                "a short report with an unknown base", "a whole report", "the peer sends it whole"
            )
        return made_whole(entry.report, report)

    def _with_bans(
        self, ledger: Ledger, offered: Sequence[bytes], now_unix_s: int, known: RecordedBans
    ) -> RecordedBans:
        """All bans, including those that peers kept and this ledger, an old copy, has lost. Blocks. Raises if one is not signed by
        us.
        """
        run, host_public_key = self._run, public_key_from_peer_id(self._run.peer_id)
        for entry in offered:
            found = open_revocation(entry, verifier=run.verifier, run_id=run.run_id, host_public_key=host_public_key)
            public_key = public_key_from_peer_id(found.peer)
            ledger.ban_again(found.peer, public_key, found.reason, entry, now_unix_s=now_unix_s)
        return recorded_bans(ledger, known)

    async def score(self, request: bytes) -> bytes:
        """Take a peer's signed score. It may be brought again: what is known already changes nothing. Raises as `TaskScores.take`, and
        RefusedError if the peer was never admitted or is banned.
        """
        envelope, credential = self._open_envelope(request, SCORE_DOMAIN)
        await self._standing(envelope, credential, may_be_banned=False)
        if self._scores is None:
            raise RefusedError("a score in a run without tasks", "a run with [[evaluate]]")
        await self._scores.take(envelope.raw)
        return pb.ScoreReply().SerializeToString()

    async def verdict(self, request: bytes) -> bytes:
        """Take an auditor's signed verdict about work that it did again. Raises as `WorkVerdicts.take`, and RefusedError if the peer
        was never admitted or is banned.
        """
        envelope, credential = self._open_envelope(request, VERDICT_DOMAIN)
        await self._standing(envelope, credential, may_be_banned=False)
        if self._verdicts is None:
            raise RefusedError("a verdict about work in a run by invite", "an open run")
        await self._verdicts.take(envelope.raw)
        return pb.WorkVerdictReply().SerializeToString()

    async def list_checkpoints(self, request: bytes) -> bytes:
        """The checkpoints on the host's disk. Raises as `report`."""
        await self._open(request, LIST_DOMAIN)
        return encode_checkpoints(
            [
                CheckpointEntry(c.index, c.commit, c.state_root, c.total_tokens, c.written_unix_s)
                for c in self._tracker.checkpoints
            ]
        )

    async def describe(self, request: bytes) -> bytes:
        """The run's manifest and dataset, for a caller that may take part; for anybody in an open run, at a bounded rate. Raises as
        `report`, as an invite is refused, and as `OpenDoor.require_calm`.
        """
        body = parse(pb.DescribeRequest, request, MAX_REQUEST_BYTES)
        if self._door is not None and not body.invite_secret:
            self._door.require_calm()
        else:
            await self._allow_probe(body)
        return pb.DescribeReply(manifest=self._run.signed_manifest, dataset=self._run.dataset).SerializeToString()

    async def dial_back(self, request: bytes, caller_host: str) -> bytes:
        """Connect back to the caller. Raises as `report`, as an invite is refused, and as Probes.is_reached."""
        body = parse(pb.DialBackRequest, request, MAX_REQUEST_BYTES)
        await self._allow_probe(body)
        is_reached = await self._probes.is_reached(caller_host, body.port, body.nonce)
        return pb.DialBackReply(is_reached=is_reached, caller_host=caller_host).SerializeToString()

    async def bandwidth(self, request: bytes, caller_host: str) -> bytes:
        """Bytes up and down, for the caller to time. Raises as `report`, as an invite is refused, and as Probes.pass_bytes."""
        body = parse(pb.BandwidthRequest, request, MAX_REQUEST_BYTES)
        await self._allow_probe(body)
        padding = self._probes.pass_bytes(caller_host, body.padding, body.wanted_bytes)
        return pb.BandwidthReply(padding=padding).SerializeToString()

    async def _allow_probe(self, body: pb.DialBackRequest | pb.BandwidthRequest | pb.DescribeRequest) -> None:
        """Refuse a caller that has neither a valid invite with uses left nor an admission, and everybody once the run is over."""
        is_run_over = self._tracker.state.phase is Phase.FINISHED
        if body.invite_secret:
            secret_hash, now_unix_s = hash_secret(body.invite_secret), self._clock.unix_s()
            error = invite_error(await self._ledger.run(lambda ledger: ledger.invite(secret_hash)), now_unix_s)
            if error is not None:
                raise error
        else:
            await self._open(body.sealed.SerializeToString(), PROBE_DOMAIN)
        if is_run_over:
            raise run_over_error()

    async def open_watch(self, request: bytes) -> PeerId:
        """Check a request to watch the run. Returns the sender. Raises as `report`."""
        return (await self._open(request, WATCH_DOMAIN)).sender

    async def next_news(self, known: RunNews | None) -> RunNews:
        """The next message for a watcher: at once after a change, or the same again after WATCH_BEAT_S."""
        return await self._tracker.wait_news(known, at_most_s=WATCH_BEAT_S)

    def _is_admitted(self, ledger: Ledger, envelope: Envelope, credential: bytes, now: float) -> bool:
        """Whether the sender was admitted, by the ledger, or by a credential that we signed if the ledger is an old copy."""
        if ledger.is_admitted(envelope.sender):
            return self._door is None or not self._door.has_ended(ledger, envelope.sender)
        if not credential:
            return False
        run = self._run
        with suppress(RefusedError):
            checked = check_credential(
                credential,
                run.authority.certificate_der,
                peer_id=envelope.sender,
                run_id=run.run_id,
                now_unix_s=now,
            )
            applicant = Applicant(envelope.sender, envelope.public_key, b"")
            is_in = ledger.readmit(applicant, credential, now_unix_s=int(now))
            restore_junior(ledger, checked, now_unix_s=int(now))
            return is_in
        return False

    async def _open(self, request: bytes, domain: str) -> Envelope:
        envelope, credential = self._open_envelope(request, domain)
        await self._standing(envelope, credential, may_be_banned=False)
        self._refuse_replay(envelope, domain)
        return envelope

    async def _standing(self, envelope: Envelope, credential: bytes, *, may_be_banned: bool) -> bool:
        """Whether the sender is banned. Raises RefusedError if it was never admitted, or is banned and must not be."""
        sender, now = envelope.sender, self._clock.unix_s()
        known = self._bans
        is_admitted, is_banned, self._bans = await self._ledger.run(
            lambda ledger: (
                self._is_admitted(ledger, envelope, credential, now),
                ledger.is_banned(sender),
                recorded_bans(ledger, known),
            )
        )
        if is_banned and not may_be_banned:
            raise ban_error(sender)
        if not (is_admitted or is_banned):
            raise RefusedError(f"{peer_name(sender)} is not admitted to this run", "a member", "join with an invite")
        return is_banned

    def _open_envelope(self, request: bytes, domain: str) -> tuple[Envelope, bytes]:
        """The envelope, and the credential that came with it."""
        sealed = parse(pb.Sealed, request, MAX_REQUEST_BYTES)
        envelope = open_envelope(
            sealed.envelope,
            verifier=self._run.verifier,
            domain=domain,
            run_id=self._run.run_id,
            now_unix_ms=int(self._clock.unix_s() * 1000),
        )
        return envelope, sealed.credential

    def _refuse_replay(self, envelope: Envelope, domain: str) -> None:
        """Refuse a replayed message, and any message of a process that a later one with the same identity has replaced."""
        guard, session = self._replays[domain], session_of(envelope.sequence)
        newest = guard.newest_session(envelope.sender)
        if session < newest:
            raise superseded()
        if not guard.admit(envelope):
            raise RemoteProtocolError(
                f"a repeated message of {envelope.sender}", "a new sequence number", "it was ignored"
            )
