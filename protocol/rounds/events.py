"""What the round machine is told: events, in the past tense.

Rules: R5, R11, R12, R19, R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.lineage.lineage import SpineView, TreeNode
from protocol.rounds.messages.messages import (
    Ballot,
    Certificate,
    Heartbeat,
    Leave,
    RoundMessage,
    Settle,
)
from protocol.rounds.state import OpenRound


@dataclass(frozen=True, slots=True)
class RoundTicked:
    """Time passed.

    Attributes:
        lag_s: how much later than asked this came; it is added to every suspicion (R12).
        bringing: who brought something on a stream of the running exchange since the tick before.
    """

    lag_s: float = 0.0
    bringing: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class PeersListed:
    """The directory names these credentialed peers."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class PeersAnswered:
    """Signs of life, told together, each with its monotonic time: who answered control messages of ours, and `heartbeats` that change
    nothing but what is known of their senders.
    """

    heard: tuple[tuple[PeerId, float], ...]
    heartbeats: tuple[tuple[Heartbeat, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A connection to the peer was refused: its process is gone, unless it was heard after `at_s`, monotonic time."""

    peer: PeerId
    at_s: float = math.inf


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A round message with a good signature from a credentialed peer, or from ourselves. `raw` is the envelope as received."""

    sender: PeerId
    message: RoundMessage
    raw: bytes


@dataclass(frozen=True, slots=True)
class Progressed:
    """The trainer's counters, and whether this peer holds verified state and may contribute (R5). Told with each tick, and
    before each `Applied`, without what that commit counted: with it the next opener hears of them, and what it heard twice would make
    the next round due at once. `due_tokens` are those of all holders once all who work have ended their part of the round, 0 where
    that is not known. `spine_ready`: of a peer that holds the spine, what is ready for that. `late_upload_s`: what the upload under
    way will have taken at its pace so far, once it takes longer than the last one did; 0 before.
    """

    tokens_ready: int
    can_contribute: bool
    upload_bytes_per_s: int = 0
    due_tokens: int = 0
    spine_ready: int | None = None
    late_upload_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ContributionReady:
    """The delta on `base` is encoded and its root is on disk; it was taken so long ago (seconds)."""

    base: CommitId
    root: Root
    tokens: int
    taken_ago_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ContributionFailed:
    """No delta could be taken on `base`: the trainer is away. The round goes on without us."""

    base: CommitId


@dataclass(frozen=True, slots=True)
class BytesHeld:
    """All bytes that the settled record names are on our disk."""

    settle: Settle


@dataclass(frozen=True, slots=True)
class AckLogged:
    """Our ack is on disk."""

    base: CommitId
    ballot: Ballot
    commit: CommitId


@dataclass(frozen=True, slots=True)
class PromiseLogged:
    """Our promise is on disk."""

    base: CommitId
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class ExchangeMeasured:
    """Our upload to all reducers of an attempt took so long, or would have (R11)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ResultRefused:
    """What a reducer gave as the result of its slice in this attempt cannot be used, and `why`. `result_hash` where the bytes that
    have that hash came whole, and mean nothing: whoever gives them, nobody who keeps to the rules acks a record that names them.
    """

    base: CommitId
    ballot: Ballot
    reducer: PeerId
    why: str
    result_hash: Root | None = None


@dataclass(frozen=True, slots=True)
class CommitsFetched:
    """What a peer answered to CatchUp, oldest first."""

    source: PeerId
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True)
class SwitchPrepared:
    """All bytes of the other lineage up to `target` are on our disk."""

    target: CommitId


@dataclass(frozen=True, slots=True)
class SwitchFailed:
    """The other lineage could not be brought here; it is tried again when somebody speaks of it. `missing`: the first commit on the
    way to it that nobody gave us the bytes of, where that was the reason.
    """

    target: CommitId
    why: str
    missing: CommitId | None = None


@dataclass(frozen=True, slots=True)
class Switched:
    """The head moved to another lineage. `open_round` is what the log knows of votes on the new head (R19)."""

    link: ChainLink
    state_root: Root
    open_round: OpenRound


@dataclass(frozen=True, slots=True)
class SpineMoved:
    """The spine has another head here, or more of it is known (R23)."""

    spine: SpineView


@dataclass(frozen=True, slots=True)
class FlipOrdered:
    """The spine changes to another lineage, and this unit with it: its bytes are on our disk. `Switched` or `SwitchFailed` follows."""

    fork: CommitId
    path: tuple[TreeNode, ...]


@dataclass(frozen=True, slots=True)
class LeaveOrdered:
    """The owner wants to go."""


@dataclass(frozen=True, slots=True)
class LeaveLogged:
    """Our goodbye is on disk."""

    leave: Leave


@dataclass(frozen=True, slots=True)
class Applied:
    """A certified commit is logged and applied; `state_root` is the root of the state it made, `open_round` what the log knows of
    votes on it: it may be our head once more, after a start that had lost its bytes (R19).
    """

    link: ChainLink
    certificate: Certificate
    state_root: Root
    open_round: OpenRound


@dataclass(frozen=True, slots=True)
class CommitStalled:
    """A certified commit could not be applied; somebody else may bring its bytes. `is_missing`: they were with nobody who was asked,
    and that was the reason.
    """

    commit: CommitId
    why: str
    is_missing: bool = False


Event = (
    RoundTicked
    | PeersListed
    | PeersAnswered
    | PeerLost
    | MessageArrived
    | Progressed
    | ContributionReady
    | ContributionFailed
    | BytesHeld
    | AckLogged
    | PromiseLogged
    | Applied
    | CommitStalled
    | ExchangeMeasured
    | ResultRefused
    | CommitsFetched
    | SwitchPrepared
    | SwitchFailed
    | Switched
    | SpineMoved
    | FlipOrdered
    | LeaveOrdered
    | LeaveLogged
)
