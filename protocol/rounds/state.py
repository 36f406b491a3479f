"""The round machine's vocabulary: what it knows (state), what it is told (events), what it orders (actions).

States are frozen. Events are in the past tense, actions are orders. Whoever drives the machine performs the actions in the
order given and reports back by events; nothing here waits, reads a clock or draws a random number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from protocol.identity import Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.chain import ChainLink
from protocol.rounds.messages import (
    AckedRecord,
    Ballot,
    Certificate,
    Heartbeat,
    Member,
    OuterStep,
    Promise,
    Proposal,
    ResultHeader,
    RoundMessage,
    Settle,
    UnitHead,
)

NO_COMMIT: Final = CommitId(bytes(32))
NO_ROOT: Final = Root(bytes(32))


@dataclass(frozen=True, slots=True)
class RoundConfig:
    """Numbers of a unit's rounds, from the manifest, and the timings of rules 6, 11 and 12.

    Attributes:
        total_tokens: the run ends when so many are committed; no round is opened after that.
        longest_interval_s: a round is due at the latest this long after the last commit.
        heartbeat_s: between two heartbeats while nothing is open.
        ping_s: between two signs of life to every member of an exchange (rule 12: twice a second).
        suspect_after_s: silence that makes a suspect (rule 12), to which the caller adds its own lag (`Ticked.lag_s`).
        promise_within_s: how long a take-over waits for promises.
        reduce_within_s: first guess of a reducer's deadline; doubled at each failed attempt (rule 11).
        settle_within_s: how long a settled record waits for its acks before the attempt ends.
    """

    run_id: RunId
    unit: UnitName
    me: Member
    verifier: Verifier
    num_chunks: int
    codec: str
    outer: OuterStep
    target_tokens: int
    min_members: int
    max_members: int
    longest_interval_s: float
    total_tokens: int = 1 << 53
    is_inbound_reachable: bool = True
    heartbeat_s: float = 1.0
    ping_s: float = 0.5
    suspect_after_s: float = 2.0
    promise_within_s: float = 3.0
    reduce_within_s: float = 20.0
    settle_within_s: float = 20.0


@dataclass(frozen=True, slots=True)
class PeerView:
    """What we last heard from a peer, and when. A hint, except that silence and resets are our own observation.

    Attributes:
        heard_at_s: monotonic time of its last sign of life towards us; an answered message of ours counts.
        lost: its process refused or reset a connection since it was last heard.
    """

    peer: PeerId
    heard_at_s: float
    member: Member | None = None
    head: UnitHead | None = None
    is_inbound_reachable: bool = False
    upload_bytes_per_s: int = 0
    lost: bool = False
    left: bool = False


@dataclass(frozen=True, slots=True)
class Leading:
    """This peer leads the attempt of `ballot`. Stage: "promising", "collecting" or "settling"."""

    ballot: Ballot
    stage: str
    deadline_s: float
    promises: Mapping[PeerId, Promise] = field(default_factory=lambda: MappingProxyType({}))
    acks: Mapping[PeerId, bytes] = field(default_factory=lambda: MappingProxyType({}))
    settle: Settle | None = None
    commit: CommitId | None = None


@dataclass(frozen=True, slots=True)
class Contribution:
    """Our one contribution on this base, durable: its root and its signed tokens. `is_at_hand` is False after a restart: the
    delta died with the process, so nothing may be offered on this base again (rules 8 and 9).
    """

    root: Root
    tokens: int
    is_at_hand: bool


@dataclass(frozen=True, slots=True)
class OpenRound:
    """Everything about the round on the current head; dropped whole when the head moves.

    Attributes:
        promised: no ballot below it is acked any more (durable before anybody is told).
        acked: the highest ballot acked here and its record (durable likewise).
        proposal: the plan of the highest ballot seen, and `proposal_at_s` when it came.
        results: reducers' signed results of the proposal's ballot, by first chunk.
        gathering: the settled record whose bytes are being fetched to disk.
        committing: the commit that is being written and applied.
        due_since_s: when this peer first thought the round due.
        quiet_until_s: no own attempt before this (back-off, rule 6).
        highest_attempt: the highest attempt heard of.
        unfit: reducers that let an attempt of ours run out of time; they get no slice in the next ones (rule 7).
    """

    promised: Ballot | None = None
    acked: AckedRecord | None = None
    contribution: Contribution | None = None
    is_preparing: bool = False
    proposal: Proposal | None = None
    proposal_at_s: float = 0.0
    exchange: Ballot | None = None
    results: Mapping[int, ResultHeader] = field(default_factory=lambda: MappingProxyType({}))
    gathering: Settle | None = None
    committing: CommitId | None = None
    leading: Leading | None = None
    due_since_s: float | None = None
    quiet_until_s: float = 0.0
    highest_attempt: int = 0
    num_failed: int = 0
    unfit: tuple[PeerId, ...] = ()

    @property
    def contribution_is_possible(self) -> bool:
        """False once the one contribution on this base has died with an earlier process."""
        return self.contribution is None or self.contribution.is_at_hand


@dataclass(frozen=True, slots=True)
class RoundState:
    """The round machine of one unit at one peer."""

    config: RoundConfig
    link: ChainLink
    peers: Mapping[PeerId, PeerView]
    open: OpenRound
    committed_at_s: float
    tokens_ready: int = 0
    can_contribute: bool = False
    state_commit: CommitId = NO_COMMIT
    state_root: Root = NO_ROOT
    upload_bytes_per_s: int = 0
    ticked_at_s: float = 0.0
    heartbeat_at_s: float = 0.0
    num_heartbeats: int = 0
    reason: str = "starting"


# --- events -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed. `lag_s`: how much later than asked this came; it is added to every suspicion (rule 12, rounds.md B7)."""

    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeersListed:
    """The directory names these credentialed peers."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """A control message of ours was answered: a sign of life."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A connection to the peer was refused or reset: its process is gone."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A round message with a good signature from a credentialed peer, or from ourselves. `raw` is the envelope as received."""

    sender: PeerId
    message: RoundMessage
    raw: bytes


@dataclass(frozen=True, slots=True)
class Progressed:
    """The trainer's counters, and whether this peer holds verified state and may contribute (rule 5)."""

    tokens_ready: int
    can_contribute: bool
    upload_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True)
class ContributionReady:
    """The delta on `base` is encoded and its root is on disk."""

    base: CommitId
    root: Root
    tokens: int


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
class Applied:
    """A certified commit is logged and applied; `state_root` is the root of the state it made."""

    link: ChainLink
    certificate: Certificate
    state_root: Root


@dataclass(frozen=True, slots=True)
class CommitStalled:
    """The bytes of a certified commit could not be had from anybody asked; somebody else may bring them."""

    commit: CommitId
    why: str


Event = (
    Ticked
    | PeersListed
    | PeerAnswered
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
)


# --- actions ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Sign the message and send it to each of these peers, ourselves included where named."""

    to: tuple[PeerId, ...]
    message: RoundMessage


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Tell these peers where we stand."""

    to: tuple[PeerId, ...]
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class PrepareContribution:
    """Take the delta at the next step boundary, encode it once, write its root to disk; answer ContributionReady."""

    base: CommitId


@dataclass(frozen=True, slots=True)
class BeginExchange:
    """Scatter our chunks and reduce our slices by this proposal; replaces an exchange of a lower ballot."""

    proposal: Proposal


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


@dataclass(frozen=True, slots=True)
class LogAck:
    """Write (ballot, record) to disk; answer AckLogged."""

    base: CommitId
    ballot: Ballot
    record: bytes
    commit: CommitId


@dataclass(frozen=True, slots=True)
class LogPromise:
    """Write the promise to disk; answer PromiseLogged."""

    base: CommitId
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Commit:
    """Bring the record's bytes to disk, log the certificate, apply it; answer Applied. `holders` know the bytes."""

    link: ChainLink
    certificate: Certificate
    holders: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AnswerWithCertificate:
    """The peer speaks of a base that is committed here: send it the certificate of that base."""

    to: PeerId
    base: CommitId


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The peer speaks of a base that we do not know: ask it for the commits after our head."""

    source: PeerId


Action = (
    Send
    | SendHeartbeat
    | PrepareContribution
    | BeginExchange
    | EndExchange
    | DropMember
    | GatherBytes
    | LogAck
    | LogPromise
    | Commit
    | AnswerWithCertificate
    | CatchUp
)


@dataclass(frozen=True, slots=True)
class Step:
    """What one event led to. `reason` is a sentence for logs and status, "" when there is nothing to say."""

    state: RoundState
    actions: tuple[Action, ...] = ()
    reason: str = ""
