"""The coordinator's messages to peers of the run, as frozen dataclasses, and their bytes. The peers' own reports are in reports.py.

The wire form is protocol/proto/coordinator.proto. Every `decode_*` checks bounds, so its result is safe to show and to store;
anything else raises RemoteProtocolError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol import errors
from protocol.errors import PotluckError
from protocol.ids import CommitId, Root
from protocol.pb import coordinator_pb2 as pb
from protocol.received import parse, require_hash_or_none, shown

SERVICE_NAME: Final = "potluck.v1.Coordinator"
START_DOMAIN: Final = "potluck start"
REPORT_DOMAIN: Final = "potluck report"
WATCH_DOMAIN: Final = "potluck watch"
LIST_DOMAIN: Final = "potluck list"
PROBE_DOMAIN: Final = "potluck probe"
ERROR_METADATA_KEY: Final = "potluck-error-bin"

TLS_SERVER_NAME: Final = "coordinator.potluck"
"""The name in every coordinator's TLS certificate: the CA in the invite, not DNS, proves who the coordinator is."""

MAX_REQUEST_BYTES: Final = 1 << 20
MAX_REPLY_BYTES: Final = 32 << 20
"""The manifest of the packed data set travels in the Admit reply: about 150 bytes per shard."""

MAX_PROBE_UP_BYTES: Final = 512 << 10
"""Padding of one request that measures the line. It leaves room for the rest of the request below MAX_REQUEST_BYTES."""

MAX_PROBE_DOWN_BYTES: Final = 4 << 20
"""Padding of one reply: on a fast line less would measure the round trip."""

MAX_PROBE_BYTES: Final = 8 << 20
"""The most that one check moves in each direction; a line that carries more within the check is fast enough for any run."""

DIAL_BACK_NONCE_BYTES: Final = 16
DIAL_BACK_WITHIN_S: Final = 3.0
"""Time for two more tries of TCP; the caller waits meanwhile."""

NO_COMMIT: Final = CommitId(b"")
NO_ROOT: Final = Root(b"")


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
    """A newcomer's welcome: credential, signed manifest, data set, addresses of the others, and the newest milestone of each unit."""

    credential: bytes
    manifest: bytes
    dataset: bytes
    start_record: bytes
    coordinator_peer_id: str
    bootstrap: tuple[str, ...]
    milestones: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One checkpoint that the coordinator holds."""

    index: int
    commit: CommitId
    state_root: Root
    total_tokens: int
    unix_s: int


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
    """An error in the form that a peer gets: one that concerns only the host becomes a TemporaryError."""
    kind = type(error).__name__
    if kind not in _CROSSING:
        error = errors.TemporaryError("the host could not do it", "", "try again; the host's log says more")
        kind = "TemporaryError"
    body = pb.ErrorBody(kind=kind, found=error.found, expected=error.expected, remedy=error.remedy)
    return body.SerializeToString(deterministic=True)


def decode_error(data: bytes) -> PotluckError:
    """The error behind a refused call. Control characters from a stranger never reach the terminal.

    Raises:
        RemoteProtocolError: not such a message.
    """
    body = parse(pb.ErrorBody, data, MAX_REPLY_BYTES)
    kind = _CROSSING.get(body.kind, errors.RemoteProtocolError)
    return kind(shown(body.found), shown(body.expected), shown(body.remedy))


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
    body = parse(pb.RunEvent, data, MAX_REPLY_BYTES)
    require_hash_or_none("head", body.head)
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
        milestones=reply.milestones,
    )
    return body.SerializeToString(deterministic=True)


def decode_admit_reply(data: bytes) -> AdmitReply:
    """The answer to an admission; manifest and credential are for the caller to verify.

    Raises:
        RemoteProtocolError: not such a message.
    """
    body = parse(pb.AdmitReply, data, MAX_REPLY_BYTES)
    return AdmitReply(
        credential=body.credential,
        manifest=body.manifest,
        dataset=body.dataset,
        start_record=body.start_record,
        coordinator_peer_id=body.coordinator_peer_id,
        bootstrap=tuple(body.bootstrap),
        milestones=tuple(body.milestones),
    )


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
    body = parse(pb.CheckpointList, data, MAX_REPLY_BYTES)
    return tuple(
        CheckpointEntry(e.index, CommitId(e.commit), Root(e.state_root), e.total_tokens, e.unix_s)
        for e in body.checkpoints
    )
