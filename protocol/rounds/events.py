"""Events of the round machine, in the past tense.

Rules: R5, R11, R12, R18, R19, R23, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.identity.standing import PeerStanding, all_keepers
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.lineage.lineage import SpineView, TreeNode
from protocol.rounds.messages.messages import Certificate, FalseSum, Heartbeat, Leave, Member, RoundMessage, Settle
from protocol.rounds.messages.record import Ballot
from protocol.rounds.state import OpenRound


@dataclass(frozen=True, slots=True)
class RoundTicked:
    """Time passed.

    Attributes:
        lag_s: how much later than asked this came; it is added to every suspicion (R12).
        bringing: peers whose bytes came on a stream of the running exchange since the last tick.
    """

    lag_s: float = 0.0
    bringing: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class PeersListed:
    """The directory names these credentialed peers."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class ApartNoted:
    """Whether other members are at work, or may be, while this peer hears none of them. It commits nothing alone then (R18)."""

    is_apart: bool


@dataclass(frozen=True, slots=True)
class PeersAnswered:
    """Signs of life, reported together, each with its monotonic time: peers that answered our control messages, and `heartbeats`
    that change only what is known of their senders.
    """

    heard: tuple[tuple[PeerId, float], ...]
    heartbeats: tuple[tuple[Heartbeat, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The peer refused a connection: its process is gone, unless it was heard after `at_s`, monotonic time. `is_silent`: it refused
    nothing, and answered none of the heartbeats that we sent it from then on.
    """

    peer: PeerId
    at_s: float = math.inf
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A round message with a good signature from a credentialed peer, or from ourselves. `raw` is the envelope as received."""

    sender: PeerId
    message: RoundMessage
    raw: bytes


@dataclass(frozen=True, slots=True)
class Progressed:
    """The trainer's counters, and whether this peer holds verified state and may contribute (R5).

    They come with each tick, and before each `Applied`. There they leave out the tokens that this commit counted: the next opener
    would count them twice, and the next round would be due at once.

    Attributes:
        due_tokens: those of all holders once all working peers have ended their part of the round, 0 where that is not known.
        spine_ready: of a peer that holds the spine, the tokens ready for it.
        late_upload_s: how long the running upload will take at its rate so far, once that is longer than the last one; 0 before.
        standings: of known peers that are no keepers, ourselves among them.
        hold: the host's newest hold, while its time lasts (R28).
    """

    tokens_ready: int
    can_contribute: bool
    upload_bytes_per_s: int = 0
    due_tokens: int = 0
    spine_ready: int | None = None
    late_upload_s: float = 0.0
    standings: Mapping[PeerId, PeerStanding] = field(default_factory=all_keepers)
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class ContributionReady:
    """The delta on `base` is encoded and its root is on disk; it was taken this long ago (seconds)."""

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
    """How long our upload to all reducers of an attempt took, or would have taken (R11)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ResultRefused:
    """A reducer's result of its slice in this attempt cannot be used, for the reason `why`. `result_hash` is given if the bytes
    with that hash came whole and are meaningless: no honest peer acks a record that names them, whichever peer offers it.
    """

    base: CommitId
    ballot: Ballot
    reducer: PeerId
    why: str
    result_hash: Root | None = None


@dataclass(frozen=True, slots=True)
class SumProven:
    """A proof that convicts a reducer was checked here and is on disk: `notice` names it, `why` says what it proves. `is_news`: it was
    not known to this process, so the others are told.
    """

    notice: FalseSum
    why: str
    is_news: bool = True


@dataclass(frozen=True, slots=True)
class SumWithheld:
    """A sum on our base could not be computed again: neither its reducer, which has all it counts, nor the contributors showed some
    chunks, for the reason `why`. That proves nothing.
    """

    base: CommitId
    reducer: PeerId
    why: str


@dataclass(frozen=True, slots=True)
class CommitsFetched:
    """A peer's answer to CatchUp, oldest first."""

    source: PeerId
    certificates: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True)
class SwitchPrepared:
    """All bytes of the other lineage up to `target` are on our disk."""

    target: CommitId


@dataclass(frozen=True, slots=True)
class SwitchFailed:
    """The other lineage could not be fetched; it is tried again when a peer mentions it. `missing`: the first commit on the way to
    it whose bytes nobody gave us, if that was the reason.
    """

    target: CommitId
    why: str
    missing: CommitId | None = None


@dataclass(frozen=True, slots=True)
class Switched:
    """The head moved to another lineage. `open_round` is the log's state of votes on the new head (R19)."""

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
    """The owner wants to go.

    Attributes:
        is_soon: first hand over what was trained on this base; the order to go follows.
        base, carrier: the base on which a peer took our contribution for the round to come, and that peer's process.
    """

    is_soon: bool = False
    base: CommitId | None = None
    carrier: Member | None = None

    def carrier_on(self, base: CommitId) -> Member | None:
        """The peer that has our contribution on this base, if any."""
        return self.carrier if self.base == base else None


@dataclass(frozen=True, slots=True)
class LeaveLogged:
    """Our goodbye is on disk."""

    leave: Leave


@dataclass(frozen=True, slots=True)
class Applied:
    """A certified commit is logged and applied; `state_root` is the root of the state it made, `open_round` the log's state of
    votes on it. It may be our head again, after a start that had lost its bytes (R19).
    """

    link: ChainLink
    certificate: Certificate
    state_root: Root
    open_round: OpenRound


@dataclass(frozen=True, slots=True)
class CommitStalled:
    """A certified commit could not be applied; another peer may bring its bytes. `is_missing`: no asked peer had them, and that was
    the reason.
    """

    commit: CommitId
    why: str
    is_missing: bool = False


Event = (
    RoundTicked
    | PeersListed
    | ApartNoted
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
    | SumProven
    | SumWithheld
    | CommitsFetched
    | SwitchPrepared
    | SwitchFailed
    | Switched
    | SpineMoved
    | FlipOrdered
    | LeaveOrdered
    | LeaveLogged
)
