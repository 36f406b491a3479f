"""What a peer and the coordinator say to each other, as frozen dataclasses, and their bytes.

The wire form is protocol/proto/coordinator.proto. Every `decode_*` checks bounds, so what it returns is safe to show
and to store; anything else raises RemoteProtocolError. Reports are hints for screens and for the start of the run;
commits count only with their certificates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from protocol import errors
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.ids import HASH_BYTES, CommitId, Root, UnitName
from protocol.pb import coordinator_pb2 as pb
from protocol.revocation import MAX_REVOCATIONS, check_fingerprints

SERVICE_NAME: Final = "potluck.v1.Coordinator"
START_DOMAIN: Final = "potluck start"
REPORT_DOMAIN: Final = "potluck report"
WATCH_DOMAIN: Final = "potluck watch"
LIST_DOMAIN: Final = "potluck list"
PROBE_DOMAIN: Final = "potluck probe"
ERROR_METADATA_KEY: Final = "potluck-error-bin"

TLS_SERVER_NAME: Final = "coordinator.potluck"
"""The name in every coordinator's TLS certificate: the CA in the invite, not DNS, says who the coordinator is."""

MAX_REQUEST_BYTES: Final = 1 << 20
MAX_REPLY_BYTES: Final = 32 << 20
"""The packed data set's manifest rides in the Admit reply: about 150 bytes per shard."""

MAX_CERTIFICATES: Final = 64
"""Certificates per report; one of 64 members is about 12 kB, and a report is cut to 1 MiB."""

MAX_CERTIFICATE_BYTES: Final = 640 << 10
"""Sum over the certificates of one report: leaves room for the rest below MAX_REQUEST_BYTES."""

MAX_PROBE_UP_BYTES: Final = 512 << 10
"""Padding of one request that measures the line; with the rest of the request well below MAX_REQUEST_BYTES."""

MAX_PROBE_DOWN_BYTES: Final = 4 << 20
"""Padding of one reply: on a fast line less would measure the round trip."""

MAX_PROBE_BYTES: Final = 8 << 20
"""What one check moves in each direction at most; a line that carries more in three seconds is fast enough for anything."""

LIKENESS_BYTES: Final = 8
"""Of a report (protocol/short_report.py): enough to tell the few that one peer ever sends."""

DIAL_BACK_NONCE_BYTES: Final = 16
DIAL_BACK_WITHIN_S: Final = 3.0
"""As long as TCP takes to try again twice; the caller waits meanwhile."""

NO_COMMIT: Final = CommitId(b"")
NO_ROOT: Final = Root(b"")
_MAX_TEXT: Final = 256
_MAX_ADDRESSES: Final = 16
_MAX_HELDOUT: Final = 64
_MAX_UNITS: Final = 1024
_MAX_START_BYTES: Final = 64 << 10
_MAX_COUNT: Final = 1 << 60

M = TypeVar("M", bound=Message)


def _require(is_fine: bool, found: str, expected: str) -> None:
    if not is_fine:
        raise RemoteProtocolError(found, expected, "the message was dropped")


def _parse(kind: type[M], data: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"bytes that are no {kind.__name__} ({error})", "a whole message") from error
    return message


def _require_hash(name: str, value: bytes) -> None:
    _require(len(value) in (0, HASH_BYTES), f"{name} of {len(value)} bytes", f"none or {HASH_BYTES} bytes")


def _require_likeness(value: bytes) -> None:
    _require(len(value) in (0, LIKENESS_BYTES), f"a likeness of {len(value)} bytes", f"none or {LIKENESS_BYTES}")


@dataclass(frozen=True, slots=True)
class HeldoutResult:
    """Held-out loss of the committed parameters of `commit`, `nats` per byte; `prose_nats` over the run's prose, if any."""

    commit: CommitId
    index: int
    total_tokens: int
    nats: float
    prose_nats: float | None = None

    def __post_init__(self) -> None:
        _require(len(self.commit) == HASH_BYTES, f"a commit id of {len(self.commit)} bytes", f"{HASH_BYTES} bytes")
        for nats in (self.nats, self.prose_nats or 0.0):
            _require(math.isfinite(nats) and 0 <= nats < 1e6, f"held-out loss {nats}", "0 to 10^6 nats")


@dataclass(frozen=True, slots=True)
class UnitStanding:
    """The newest commit of a unit whose state root a peer computed, and that root."""

    unit: UnitName
    state_commit: CommitId
    state_root: Root

    def __post_init__(self) -> None:
        _require_hash("state_commit", self.state_commit)
        _require_hash("state_root", self.state_root)
        _require(len(self.unit) <= _MAX_TEXT, f"a unit name of {len(self.unit)} letters", f"at most {_MAX_TEXT}")


@dataclass(frozen=True, slots=True)
class PeerReport:
    """What a peer says of itself, every few seconds, signed.

    Attributes:
        state: one word ("joining", "training", "paused", "leaving", ..); `reason` says why in one sentence.
        head, index, total_tokens: newest commit applied; empty and 0 before the start.
        tokens_ready: trained and not yet credited.
        loss_nats: mean training loss of the latest steps, None before the first.
        bytes_up, bytes_down: payload since the process started.
        state_commit, state_root: newest commit whose state root this peer computed, and that root.
        is_ready_to_start: data, model and network are there; it waits for the start record.
        certificates: of commits in order, as received, from the index that the coordinator asked for.
        addresses: own multiaddresses.
        start_record: the host's signed envelope, while the coordinator says that the run has not started and it has.
        known_revocations: fingerprints of the host's revocations that this peer has.
        revocations: signed entries that the coordinator asked for.
        version: of its program, empty where it does not say.
        is_outbound_only: it takes no connections; it works over those that it makes itself.
        like: of a short report, the likeness of the whole one that says where the peer stands; empty in a whole one.
        beside: where the units stand that are not the spine.
    """

    state: str
    reason: str
    unit: UnitName
    head: CommitId = NO_COMMIT
    index: int = 0
    total_tokens: int = 0
    tokens_per_s: float = 0.0
    tokens_ready: int = 0
    loss_nats: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    state_commit: CommitId = NO_COMMIT
    state_root: Root = NO_ROOT
    is_ready_to_start: bool = False
    heldout: tuple[HeldoutResult, ...] = ()
    certificates: tuple[bytes, ...] = ()
    addresses: tuple[str, ...] = ()
    start_record: bytes = b""
    known_revocations: bytes = b""
    revocations: tuple[bytes, ...] = ()
    version: str = ""
    is_outbound_only: bool = False
    like: bytes = b""
    beside: tuple[UnitStanding, ...] = ()

    def __post_init__(self) -> None:
        check_fingerprints(self.known_revocations)
        _require_likeness(self.like)
        for name in ("head", "state_commit", "state_root"):
            _require_hash(name, getattr(self, name))
        for text in (self.state, self.reason, self.unit, self.version, *self.addresses):
            _require(len(text) <= _MAX_TEXT, f"a text of {len(text)} letters in a report", f"at most {_MAX_TEXT}")
        for name in ("index", "total_tokens", "tokens_ready", "bytes_up", "bytes_down"):
            value = getattr(self, name)
            _require(0 <= value <= _MAX_COUNT, f"{name} {value}", "0 to 2^60")
        _require(math.isfinite(self.tokens_per_s) and self.tokens_per_s >= 0, f"{self.tokens_per_s} tokens/s", "a rate")
        # NaN and infinity would poison the loss curve of everybody.
        _require(math.isfinite(self.loss_nats or 0.0), f"training loss {self.loss_nats}", "a finite number")
        sizes = {"results": (len(self.heldout), _MAX_HELDOUT), "addresses": (len(self.addresses), _MAX_ADDRESSES)}
        sizes["units"] = len(self.beside), _MAX_UNITS
        sizes["certificates"] = len(self.certificates), MAX_CERTIFICATES
        for what, (found, most) in {**sizes, "bytes of start": (len(self.start_record), _MAX_START_BYTES)}.items():
            _require(found <= most, f"{found} {what}", f"at most {most}")


@dataclass(frozen=True, slots=True)
class ReportReply:
    """Where the coordinator stands, and the index of the first certificate it wants next.

    Attributes:
        is_final_checkpoint_written: the run is finished and its last state is safe with the host: peers may leave.
        revocations: signed entries that the peer lacks, for it to verify.
        asks_revocations: the coordinator lacks some that the peer has; `known_revocations` are fingerprints of its own.
        like: the likeness of the report as it was taken: the next one may be short where it has the same. Empty from a coordinator
            that takes whole ones only.
    """

    phase: str
    head: CommitId
    index: int
    want_from_index: int
    is_final_checkpoint_written: bool = False
    revocations: tuple[bytes, ...] = ()
    asks_revocations: bool = False
    known_revocations: bytes = b""
    like: bytes = b""

    def __post_init__(self) -> None:
        check_fingerprints(self.known_revocations)
        _require_likeness(self.like)


@dataclass(frozen=True, slots=True)
class RunNews:
    """One event of the run watch.

    Attributes:
        start_record: the host's signed envelope (domain START_DOMAIN), empty before the start.
    """

    phase: str
    reason: str
    head: CommitId
    index: int
    total_tokens: int
    start_record: bytes
    is_final_checkpoint_written: bool = False


@dataclass(frozen=True, slots=True)
class AdmitReply:
    """What a newcomer gets: credential, signed manifest, data set, and where to find the others."""

    credential: bytes
    manifest: bytes
    dataset: bytes
    start_record: bytes
    coordinator_peer_id: str
    bootstrap: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One checkpoint that the coordinator holds."""

    index: int
    commit: CommitId
    state_root: Root
    total_tokens: int
    unix_s: int


def cut_certificates(certificates: Sequence[bytes]) -> tuple[bytes, ...]:
    """As many of the first certificates as fit into one report."""
    first = certificates[:MAX_CERTIFICATES]
    sums = accumulate(len(certificate) for certificate in first)
    return tuple(part for part, so_far in zip(first, sums, strict=True) if so_far <= MAX_CERTIFICATE_BYTES)


def encode_report(report: PeerReport) -> bytes:
    """The payload of a report envelope."""
    body = pb.ReportBody(
        state=report.state,
        reason=report.reason,
        unit=report.unit,
        head=report.head,
        index=report.index,
        total_tokens=report.total_tokens,
        tokens_per_s=report.tokens_per_s,
        tokens_ready=report.tokens_ready,
        bytes_up=report.bytes_up,
        bytes_down=report.bytes_down,
        state_commit=report.state_commit,
        state_root=report.state_root,
        is_ready_to_start=report.is_ready_to_start,
        certificates=report.certificates,
        addresses=report.addresses,
        start_record=report.start_record,
        known_revocations=report.known_revocations,
        revocations=report.revocations,
        version=report.version,
        is_outbound_only=report.is_outbound_only,
        like=report.like,
    )
    for part in report.beside:
        body.beside.add(unit=part.unit, state_commit=part.state_commit, state_root=part.state_root)
    if report.loss_nats is not None:
        body.loss_nats = report.loss_nats
    for result in report.heldout:
        body.heldout.add(
            commit=result.commit,
            index=result.index,
            total_tokens=result.total_tokens,
            nats=result.nats,
            prose_nats=result.prose_nats,
        )
    return body.SerializeToString(deterministic=True)


def _decode_heldout(body: pb.HeldoutBody) -> HeldoutResult:
    prose_nats = body.prose_nats if body.HasField("prose_nats") else None
    return HeldoutResult(CommitId(body.commit), body.index, body.total_tokens, body.nats, prose_nats)


def decode_report(data: bytes) -> PeerReport:
    """A report from the payload of its envelope.

    Raises:
        RemoteProtocolError: no report, or a value out of its bounds.
    """
    _require(len(data) <= MAX_REQUEST_BYTES, f"a report of {len(data)} bytes", f"at most {MAX_REQUEST_BYTES}")
    body = _parse(pb.ReportBody, data)
    return PeerReport(
        state=body.state,
        reason=body.reason,
        unit=UnitName(body.unit),
        head=CommitId(body.head),
        index=body.index,
        total_tokens=body.total_tokens,
        tokens_per_s=body.tokens_per_s,
        tokens_ready=body.tokens_ready,
        loss_nats=body.loss_nats if body.HasField("loss_nats") else None,
        bytes_up=body.bytes_up,
        bytes_down=body.bytes_down,
        state_commit=CommitId(body.state_commit),
        state_root=Root(body.state_root),
        is_ready_to_start=body.is_ready_to_start,
        heldout=tuple(_decode_heldout(h) for h in body.heldout),
        certificates=tuple(body.certificates),
        addresses=tuple(body.addresses),
        start_record=body.start_record,
        known_revocations=body.known_revocations,
        revocations=tuple(body.revocations[:MAX_REVOCATIONS]),
        version=body.version,
        is_outbound_only=body.is_outbound_only,
        like=body.like,
        beside=tuple(_decode_standing(part) for part in body.beside),
    )


def _decode_standing(body: pb.UnitBody) -> UnitStanding:
    return UnitStanding(UnitName(body.unit), CommitId(body.state_commit), Root(body.state_root))


_CROSSING: Final[dict[str, type[PotluckError]]] = {
    kind.__name__: kind
    for kind in (
        errors.RefusedError,
        errors.VersionError,
        errors.RunOverError,
        errors.TemporaryError,
        errors.RemoteProtocolError,
        errors.MachineError,
        errors.SupersededError,
    )
}


def encode_error(error: PotluckError) -> bytes:
    """An error as it crosses to the peer: what is no business of a peer becomes a TemporaryError."""
    kind = type(error).__name__
    if kind not in _CROSSING:
        error = errors.TemporaryError("the coordinator could not do it", "", "try again; the host's log says more")
        kind = "TemporaryError"
    body = pb.ErrorBody(kind=kind, found=error.found, expected=error.expected, remedy=error.remedy)
    return body.SerializeToString(deterministic=True)


def decode_error(data: bytes) -> PotluckError:
    """The error behind a refused call; control characters from a stranger never reach the terminal.

    Raises:
        RemoteProtocolError: not such a message.
    """
    body = _parse(pb.ErrorBody, data)
    kind = _CROSSING.get(body.kind, errors.RemoteProtocolError)
    return kind(shown(body.found), shown(body.expected), shown(body.remedy))


def shown(text: str) -> str:
    """A stranger's text as it may be shown: 256 letters of it at most, and no control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:_MAX_TEXT])


def encode_report_reply(reply: ReportReply) -> bytes:
    """The bytes of the answer to a report."""
    body = pb.ReportReply(
        phase=reply.phase,
        head=reply.head,
        index=reply.index,
        want_from_index=reply.want_from_index,
        is_final_checkpoint_written=reply.is_final_checkpoint_written,
        revocations=reply.revocations,
        asks_revocations=reply.asks_revocations,
        known_revocations=reply.known_revocations,
        like=reply.like,
    )
    return body.SerializeToString(deterministic=True)


def decode_report_reply(data: bytes) -> ReportReply:
    """The answer to a report. Raises RemoteProtocolError when it is none."""
    body = _parse(pb.ReportReply, data)
    _require_hash("head", body.head)
    _require(len(body.revocations) <= MAX_REVOCATIONS, f"{len(body.revocations)} revocations", "not so many")
    return ReportReply(
        phase=body.phase,
        head=CommitId(body.head),
        index=body.index,
        want_from_index=body.want_from_index,
        is_final_checkpoint_written=body.is_final_checkpoint_written,
        revocations=tuple(body.revocations),
        asks_revocations=body.asks_revocations,
        known_revocations=body.known_revocations,
        like=body.like,
    )


def encode_news(news: RunNews) -> bytes:
    """The bytes of one event of the run watch."""
    body = pb.RunEvent(
        phase=news.phase,
        reason=news.reason,
        head=news.head,
        index=news.index,
        total_tokens=news.total_tokens,
        start_record=news.start_record,
        is_final_checkpoint_written=news.is_final_checkpoint_written,
    )
    return body.SerializeToString(deterministic=True)


def decode_news(data: bytes) -> RunNews:
    """One event of the run watch. Raises RemoteProtocolError when it is none."""
    body = _parse(pb.RunEvent, data)
    _require_hash("head", body.head)
    return RunNews(
        phase=body.phase,
        reason=body.reason,
        head=CommitId(body.head),
        index=body.index,
        total_tokens=body.total_tokens,
        start_record=body.start_record,
        is_final_checkpoint_written=body.is_final_checkpoint_written,
    )


def encode_admit_reply(reply: AdmitReply) -> bytes:
    """The bytes of the answer to an admission."""
    body = pb.AdmitReply(
        credential=reply.credential,
        manifest=reply.manifest,
        dataset=reply.dataset,
        start_record=reply.start_record,
        coordinator_peer_id=reply.coordinator_peer_id,
        bootstrap=reply.bootstrap,
    )
    return body.SerializeToString(deterministic=True)


def decode_admit_reply(data: bytes) -> AdmitReply:
    """The answer to an admission; manifest and credential are for the caller to verify.

    Raises:
        RemoteProtocolError: not such a message.
    """
    body = _parse(pb.AdmitReply, data)
    bootstrap = tuple(body.bootstrap)
    found = body.credential, body.manifest, body.dataset, body.start_record, body.coordinator_peer_id
    return AdmitReply(*found, bootstrap)


def encode_checkpoints(entries: Sequence[CheckpointEntry]) -> bytes:
    """The bytes of a list of checkpoints."""
    body = pb.CheckpointList()
    for entry in entries:
        body.checkpoints.add(
            index=entry.index,
            commit=entry.commit,
            state_root=entry.state_root,
            total_tokens=entry.total_tokens,
            unix_s=entry.unix_s,
        )
    return body.SerializeToString(deterministic=True)


def decode_checkpoints(data: bytes) -> tuple[CheckpointEntry, ...]:
    """A list of checkpoints. Raises RemoteProtocolError when it is none."""
    body = _parse(pb.CheckpointList, data)
    return tuple(
        CheckpointEntry(e.index, CommitId(e.commit), Root(e.state_root), e.total_tokens, e.unix_s)
        for e in body.checkpoints
    )
