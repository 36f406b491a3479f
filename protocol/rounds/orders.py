"""Orders of the round machine. The driver performs them as given and reports back by events (events.py).

Each order gives its reason as a sentence for the log; two orders that ask for the same are equal whatever their reasons. The words
of `EndExchange` and `DropMember` are part of the order: they are passed on.

Rules: R12, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import TreeNode
from protocol.rounds.messages.messages import Certificate, FalseSum, Heartbeat, Leave, Proposal, RoundMessage, Settle
from protocol.rounds.messages.record import Ballot


@dataclass(frozen=True, slots=True)
class Send:
    """Sign the message and send it to each of these peers, ourselves included where named."""

    to: tuple[PeerId, ...]
    message: RoundMessage
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Send these peers our heartbeat. A question, or news that somebody waits for, is sent even if another heartbeat just went."""

    to: tuple[PeerId, ...]
    heartbeat: Heartbeat
    is_question: bool = False
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class PrepareContribution:
    """Take the delta at the next step boundary, encode it once, write its root to disk; answer ContributionReady."""

    base: CommitId
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class BeginExchange:
    """Scatter our chunks and reduce our slices by this proposal. It replaces an exchange of a lower ballot. Within one ballot it is
    mended: slices that kept their reducer go on, only moved ones are sent again (R12).
    """

    proposal: Proposal
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class GiveTime:
    """Slices of the running exchange wait for contributions at least this long from their beginning."""

    ballot: Ballot
    reduce_within_s: float
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class EndExchange:
    """Stop moving bytes for this base."""

    base: CommitId
    reason: str


@dataclass(frozen=True, slots=True)
class DropMember:
    """Stop waiting for this member in the running exchange."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class GatherBytes:
    """Bring all bytes that the record names to our disk, from its holders; answer BytesHeld."""

    settle: Settle
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LogAck:
    """Write (ballot, record) to disk; answer AckLogged. An ack of a lone record leaves the other one as it is. `leaves` are the signed
    goodbyes on which the record may rely, by leaver: after a power cut of everybody nobody else may have them.
    """

    base: CommitId
    ballot: Ballot
    record: bytes
    commit: CommitId
    lone: bool = False
    leaves: tuple[bytes, ...] = ()
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LogPromise:
    """Write the promise to disk; answer PromiseLogged."""

    base: CommitId
    ballot: Ballot
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """Bring the record's bytes to disk, log the certificate, apply it; answer Applied. `holders` know the bytes."""

    link: ChainLink
    certificate: Certificate
    holders: tuple[PeerId, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class AnswerWithCertificate:
    """The peer speaks of a base that is committed here: send it the certificate of that base."""

    to: PeerId
    base: CommitId
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LogLeave:
    """Write to disk that we ack nothing on this base from now on; answer LeaveLogged. `leave` is the goodbye to send."""

    leave: Leave
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The peer speaks of commits that we do not know: ask it for those after the newest of `known`; answer CommitsFetched."""

    source: PeerId
    known: tuple[CommitId, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class PrepareSwitch:
    """Another lineage is to be followed: bring all of its bytes since `fork` to disk, in the background; answer SwitchPrepared
    or SwitchFailed. Work on our own lineage goes on meanwhile (R24).
    """

    fork: CommitId
    path: tuple[TreeNode, ...]
    holders: tuple[PeerId, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Switch:
    """Flip to the prepared lineage in one durable record and offer our own work since the fork again; answer Switched."""

    fork: CommitId
    path: tuple[TreeNode, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReportDoubleVote:
    """Keep the two acks that convict a voter, and show them to the host, which bans it."""

    voter: PeerId
    one: bytes
    other: bytes
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FetchSumProof:
    """Ask the peer for the proof of a false sum, check it and keep it; answer SumProven if it convicts the reducer."""

    source: PeerId
    notice: FalseSum
    reason: str = field(default="", compare=False)


Action = (
    Send
    | SendHeartbeat
    | PrepareContribution
    | BeginExchange
    | GiveTime
    | EndExchange
    | DropMember
    | GatherBytes
    | LogAck
    | LogPromise
    | LogLeave
    | Commit
    | AnswerWithCertificate
    | CatchUp
    | PrepareSwitch
    | Switch
    | ReportDoubleVote
    | FetchSumProof
)
