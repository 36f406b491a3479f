"""The state of the round machine. Its events are in events.py, its orders in orders.py.

States are frozen; those that `protocol.frozen.replace` copies have no slots. The driver of the machine performs the orders in the
given order and reports back by events. Nothing here waits, reads a clock or draws a random number.

Rules: R6, R7, R8, R10, R11, R12, R18, R23, R24, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.identity.identity import Verifier
from protocol.identity.standing import PeerStanding, all_keepers
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.lineage.lineage import CommitTree, SpineView
from protocol.rounds.messages.messages import (
    AckedRecord,
    Committed,
    Leave,
    Member,
    Promise,
    Proposal,
    ResultHeader,
    Settle,
    UnitHead,
)
from protocol.rounds.messages.record import Ballot, OuterStep
from protocol.rounds.orders import Action
from protocol.rounds.schedule.liveness_timing import PROMISE_WITHIN_S, SUSPECT_AFTER_S
from protocol.rounds.schedule.stagger import UNSTAGGERED, Stagger
from protocol.rounds.schedule.sum_rules import DEFAULT_SUMS, SumRules
from protocol.rounds.schedule.target import RoundTarget

NO_COMMIT: Final = CommitId(bytes(32))
NO_ROOT: Final = Root(bytes(32))

MAX_TELLERS: Final = 2
"""Peers that are asked for a commit whose leader's certificate did not come: one may lie or be gone, and each sends a certificate.
"""


@dataclass(frozen=True, slots=True)
class RoundConfig:
    """Numbers of a unit's rounds, from the manifest, and the timings of R6, R11 and R12.

    Attributes:
        total_tokens: the run ends when this many are committed; no round is opened after that.
        longest_interval_s: a round is due at the latest this long after the last commit.
        heartbeat_s: between two heartbeats while nothing is open.
        ping_s: between two signs of life to every member of an exchange (R12: twice a second, ticks' delays included).
        suspect_after_s: silence that makes a suspect (R12), to which the caller adds its own lag (`RoundTicked.lag_s`).
        promise_within_s: how long a take-over waits for pre-votes, and then for promises; voters who have to ask the opener
            first answer only after `suspect_after_s`.
        sums: how reducers sum slices, and how long they wait (R10, R11).
        replay_at_most: with more commits to catch up on, a whole state is fetched: it is fewer bytes than they are (R24).
        lone_patience_s: awake time without a quorum after which the peers at hand commit alone (R18).
        settle_within_s: the least time that a settled record waits for its acks before the attempt ends.
        spine: the run's spine (R23); None where this unit is it.
        result_codec: name of the codec of results; empty where it is that of contributions.
        target: the rule of when the next round is due.
        stagger: how the rounds of this unit lie between those of others.
        momentum_from_tokens: rounds of fewer tokens a voter take the plain mean (outer_rule.py).
        is_in_step: every unit has a round for each of the spine's, and its last one belongs to the spine's last one.
    """

    run_id: RunId
    unit: UnitName
    me: Member
    verifier: Verifier
    num_chunks: int
    codec: str
    outer: OuterStep
    target: RoundTarget
    min_members: int
    max_members: int
    longest_interval_s: float
    total_tokens: int = 1 << 53
    is_inbound_reachable: bool = True
    heartbeat_s: float = 1.0
    ping_s: float = 0.4
    suspect_after_s: float = SUSPECT_AFTER_S
    promise_within_s: float = PROMISE_WITHIN_S
    sums: SumRules = DEFAULT_SUMS
    settle_within_s: float = 20.0
    lone_patience_s: float = 60.0
    replay_at_most: int = 16
    spine: UnitName | None = None
    result_codec: str = ""
    stagger: Stagger = UNSTAGGERED
    momentum_from_tokens: int = 0
    is_in_step: bool = False

    @property
    def is_spine(self) -> bool:
        """Whether this unit decides for all others."""
        return self.spine is None or self.spine == self.unit


@dataclass(frozen=True)
class PeerView:
    """The last that we heard from a peer, and when. A hint, except that silence and refused connections are our own observation.

    Attributes:
        heard_at_s: monotonic time of its last sign of life towards us; an answered message of ours counts.
        lost: its process refused a connection, or two connections broke, since it was last heard.
        exchange_s: how long its uploads took, 0 when it has not reported it.
        silent: members of the running exchange whom it does not hear, as it reported at `reported_at_s`.
        spine_head: the spine commit on which it stands, None where it has not reported one or does not hold the spine.
        spine_ready: the tokens that it has ready for the spine's next round.
    """

    peer: PeerId
    heard_at_s: float
    member: Member | None = None
    head: UnitHead | None = None
    is_inbound_reachable: bool = False
    upload_bytes_per_s: int = 0
    lost: bool = False
    left: bool = False
    exchange_s: float = 0.0
    silent: tuple[PeerId, ...] = ()
    reported_at_s: float = 0.0
    spine_head: CommitId | None = None
    spine_ready: int = 0


@dataclass(frozen=True)
class Leading:
    """This peer leads the attempt of `ballot`.

    Attributes:
        stage: "asking" (pre-votes), "promising" (our own promise being written, then everybody's), "collecting" (results) or
            "settling" (acks). The owner of attempt 0 begins at "promising" and needs nobody's promise but its own.
        lone_voters: without a quorum, all of these must agree, promise and ack (R18); empty otherwise.
        is_promised: our own promise for the ballot is on disk. Nobody hears of the ballot before that, so a crash cannot make us
            lead two attempts under one name.
        pre_vote_envelopes, promise_envelopes: votes of others as they signed them: our proof to those who did not hear them.
        settled_s: when the record was settled, 0 before.
        has_leaders_word: the leader of the running attempt has answered whether this one is wanted.
        refusers: peers that say that they promised a higher ballot.
    """

    ballot: Ballot
    stage: str
    deadline_s: float
    lone_voters: tuple[PeerId, ...] = ()
    is_promised: bool = False
    pre_vote_envelopes: Mapping[PeerId, bytes] = field(default_factory=lambda: MappingProxyType({}))
    promises: Mapping[PeerId, Promise] = field(default_factory=lambda: MappingProxyType({}))
    promise_envelopes: Mapping[PeerId, bytes] = field(default_factory=lambda: MappingProxyType({}))
    acks: Mapping[PeerId, bytes] = field(default_factory=lambda: MappingProxyType({}))
    settle: Settle | None = None
    settled_s: float = 0.0
    commit: CommitId | None = None
    has_leaders_word: bool = False
    refusers: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Contribution:
    """This session's one contribution on this base, durable: its root and its signed tokens (R8)."""

    root: Root
    tokens: int


@dataclass(frozen=True, slots=True)
class SignedLeave:
    """A goodbye on this base, and its envelope as received."""

    leave: Leave
    raw: bytes


@dataclass(frozen=True)
class PendingPreVote:
    """A question that is answered once the opener answered us, or after `suspect_after_s` without a sign of it."""

    asker: PeerId
    ballot: Ballot
    opener: PeerId
    asked_at_s: float


@dataclass(frozen=True)
class Ahead:
    """Peers that reported a head beyond ours, or sent its certificate: claims, none of them verified.

    Attributes:
        since_s: when the first of them did. A pause of our machine is no reason to wait longer.
        tellers: the first MAX_TELLERS of them, each once.
        were_asked: whether they were asked for it; a peer that reports it after that is asked at once.
        unplaced: certificates whose parent is not known here, each with its sender.
    """

    since_s: float
    tellers: tuple[PeerId, ...]
    were_asked: bool = False
    unplaced: tuple[tuple[PeerId, Committed], ...] = ()

    def reported_by(self, peer: PeerId) -> Ahead:
        """One more peer reported it."""
        if peer in self.tellers or len(self.tellers) >= MAX_TELLERS:
            return self
        return replace(self, tellers=(*self.tellers, peer))


@dataclass(frozen=True)
class AnnouncedTimes:
    """How long the slices of an attempt wait, 0 where it is as the proposal says, and how long our upload takes, in seconds."""

    reduce_within_s: float = 0.0
    upload_s: float = 0.0


@dataclass(frozen=True)
class LeaderAttempts:
    """The attempts of one leader on a base.

    Attributes:
        num_proposed: the attempts that it has proposed to us.
        num_promised, promised_at_s: the attempts that we promised it, and when we did last.
        refused_at_s: when its last settled record broke a rule; for a while we agree to no further attempt of it.
    """

    num_proposed: int = 0
    num_promised: int = 0
    promised_at_s: float = 0.0
    refused_at_s: float | None = None


@dataclass(frozen=True)
class OpenRound:
    """Everything about the round on the current head; dropped whole when the head moves.

    Attributes:
        promised: no ballot below it is acked from now on (durable before anybody is told).
        acked: the highest ballot acked here and its record (durable likewise). Lone records are separate, in `acked_lone`: they
            decide nothing for peers that still have a quorum. `acked_before` is our ack of another record before `acked`: the next ack
            names it.
        snapshot_at_s: when our contribution was taken, 0 where there is none.
        proposal: the plan of the highest ballot seen, and `proposal_at_s` when it came.
        results: reducers' signed results of the proposal's ballot, by first chunk; `held` are those whose bytes are on our disk.
        claimed: tokens that others signed for this base, as results of any attempt showed them.
        gathering: the settled record whose bytes are being fetched to disk.
        committing: the commit that is being written and applied.
        stalled: a commit of which no peer that answered had the bytes.
        announced: the commit of an attempt of ours that was announced to everybody when it was decided.
        ahead: peers that reported a commit after this base, whose leader's certificate has not come.
        due_since_s: when this peer first found the round due.
        quiet_until_s: no own attempt before this (back-off, R6).
        highest_attempt: the highest attempt heard of.
        unfit: reducers that let an attempt of ours run out of time, or gave results that cannot be used; they get no slice in the
            next ones (R7).
        useless: results whose bytes came here and mean nothing (R10).
        revision: how often the proposal was mended.
        told: the times of it that we last announced.
        given_s: how long after `proposal_at_s` its leader gives it time, as it told us; 0 before it was asked.
        asked: pre-votes that wait for a sign of the opener.
        asked_since: participants of a large exchange whom others miss, and since when we ask them ourselves (failure_probes.py).
        leaves: the signed goodbyes of peers that left on this base, with their votes.
        voteless: peers that reported that no vote of theirs counts on this base, without a goodbye that we have.
        leaders: the attempts of each leader on this base, as we saw them (R6).
        has_left: we said goodbye on this base in an earlier process, or do not know our votes: no vote of ours counts on it.
    """

    promised: Ballot | None = None
    acked: AckedRecord | None = None
    acked_lone: AckedRecord | None = None
    acked_before: AckedRecord | None = None
    contribution: Contribution | None = None
    snapshot_at_s: float = 0.0
    is_preparing: bool = False
    proposal: Proposal | None = None
    proposal_at_s: float = 0.0
    exchange: Ballot | None = None
    results: Mapping[int, ResultHeader] = field(default_factory=lambda: MappingProxyType({}))
    held: frozenset[int] = frozenset()
    claimed: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    gathering: Settle | None = None
    committing: CommitId | None = None
    stalled: CommitId | None = None
    announced: CommitId | None = None
    ahead: Ahead | None = None
    leading: Leading | None = None
    due_since_s: float | None = None
    quiet_until_s: float = 0.0
    highest_attempt: int = 0
    num_failed: int = 0
    unfit: tuple[PeerId, ...] = ()
    useless: frozenset[Root] = frozenset()
    revision: int = 0
    told: AnnouncedTimes = AnnouncedTimes()
    given_s: float = 0.0
    asked: tuple[PendingPreVote, ...] = ()
    asked_since: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    has_left: bool = False
    leaders: Mapping[PeerId, LeaderAttempts] = field(default_factory=lambda: MappingProxyType({}))
    leaves: Mapping[PeerId, SignedLeave] = field(default_factory=lambda: MappingProxyType({}))
    voteless: frozenset[PeerId] = frozenset()

    @property
    def departures(self) -> Mapping[PeerId, Leave]:
        """The goodbyes on this base, by leaver."""
        return {peer: signed.leave for peer, signed in self.leaves.items()}


@dataclass(frozen=True)
class Switching:
    """Another lineage is being fetched, is here (`is_prepared`), or is being switched to, possibly together with the spine."""

    fork: CommitId
    target: CommitId
    is_prepared: bool = False
    is_flipping: bool = False
    is_with_spine: bool = False


@dataclass(frozen=True)
class UnavailableCommit:
    """A commit whose bytes nobody had (unavailable_commits.py).

    Attributes:
        until_s, pause_s: it is passed over until then, for this long in all.
        asked: the peers that were alive then.
        standing: those that stood on it or on a later commit.
        is_believed: whether it is passed over now; else it is wanted again, and the pause is remembered.
    """

    until_s: float
    pause_s: float
    asked: frozenset[PeerId]
    standing: frozenset[PeerId]
    is_believed: bool = True


@dataclass(frozen=True, slots=True)
class Survey:
    """A summary of others' views for the round on `commit`, derived from them (peer_survey.py).

    Attributes:
        peers, leaves: the views and the goodbyes that it summarises.
        most_tokens: the most that others can have ready, live or not.
        voters: just more than half of the roster, who may vote and were heard at `heard_at_s` or later; empty where not known.
    """

    peers: Mapping[PeerId, PeerView]
    commit: CommitId
    leaves: Mapping[PeerId, SignedLeave]
    most_tokens: int
    voters: frozenset[PeerId]
    heard_at_s: float


@dataclass(frozen=True)
class Barred:
    """Peers that are left out, for good or for a while, and whether we are.

    Attributes:
        is_apart: whether others are at work, or may be, and we hear none of them.
        expelled: peers that their own signatures convict (lineage/double_votes.py, audit/sum_proof.py); nothing of theirs counts
            any more.
        no_slices_until: the commit from which on these reducers may get a slice of us again; they withheld a result or lied in one.
        voters_until: the commit from which on we may drop these voters again: others did not ack a record of ours without them.
        patient_at: the commit at which we last waited for these peers because they reported slow lines (participants.py).
        doubted_until: the commit from which on we believe these members' uploads again (participants.py).
        silent_since: when we found that these peers answer no heartbeats, the latest last (failure_probes.py).
        false_sums: results of which a proof says that they are summed falsely (audit/sum_proof.py).
        standings: of peers that are no keepers, by their credentials; ourselves among them.
        hold: while the host's newest hold lasts (R28), it.
    """

    expelled: frozenset[PeerId] = frozenset()
    no_slices_until: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    is_apart: bool = False
    voters_until: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    patient_at: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    doubted_until: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    silent_since: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    false_sums: frozenset[Root] = frozenset()
    standings: Mapping[PeerId, PeerStanding] = field(default_factory=all_keepers)
    hold: Hold | None = None

    def expelling(self, *peers: PeerId) -> Barred:
        """These peers are out, too."""
        return replace(self, expelled=self.expelled.union(peers))

    def told(self, standings: Mapping[PeerId, PeerStanding], hold: Hold | None) -> Barred:
        """These peers, and no others, are no keepers; the host's hold is this one."""
        is_known = standings == self.standings and hold == self.hold
        return self if is_known else replace(self, standings=standings, hold=hold)


@dataclass(frozen=True)
class Pulse:
    """When this process was awake.

    Attributes:
        heartbeat_at_s, num_heartbeats: when it last sent a heartbeat, and how often it did.
        ticked_at_s: when the last tick came, or a sleep was noticed without one; 0 before the first.
        tick_due_s: when the tick after it is due at the latest: a step may ask for an earlier one.
        stepped_at_s: when it last took a step while a tick was overdue: a process that handles messages is slow and does not sleep.
        woke_at_s: when it went on after a sleep in which others may have gone on alone; None if it never slept so long.
        report_at_s: when the next opener is to hear of our head; None if it has heard, or hears by the next heartbeats.
        started_at_s: when it began; what happened before, it did not see.
    """

    heartbeat_at_s: float = 0.0
    num_heartbeats: int = 0
    ticked_at_s: float = field(default=0.0, compare=False)
    tick_due_s: float = field(default=0.0, compare=False)
    stepped_at_s: float = field(default=0.0, compare=False)
    woke_at_s: float | None = None
    report_at_s: float | None = None
    started_at_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class RoundState:
    """The round machine of one unit at one peer.

    Attributes:
        link: the head: the newest commit that is applied here.
        tree: the verified commits that are known here, on any lineage.
        switching: the lineage that is being fetched to be followed.
        alone_since_s: since when no quorum of the base roster was in reach, in awake time.
        exchange_s: how long our last upload took, 0 before the first.
        proposed_at_s: when the head's round was proposed, 0 where unheard.
        snapshot_at_s: when our part of it was taken, 0 where there is none.
        spine: the spine as this peer follows it; None where this unit is the spine.
        due_tokens: tokens ready when all working peers have ended their part of the round, as far as is known here. 0 where the
            last commit's target decides when a round is due. Peers need not agree on when one is opened.
        spine_ready: tokens that we have ready for its next round; None where we do not hold it.
        missing: commits of other lineages whose bytes nobody had (unavailable_commits.py).
        barred: peers that broke a rule provably, and reducers that get no slice of us for a while.
    """

    config: RoundConfig
    link: ChainLink
    tree: CommitTree
    peers: MappingProxyType[PeerId, PeerView]
    open: OpenRound
    committed_at_s: float
    tokens_ready: int = 0
    can_contribute: bool = False
    state_commit: CommitId = NO_COMMIT
    state_root: Root = NO_ROOT
    upload_bytes_per_s: int = 0
    switching: Switching | None = None
    is_leaving: bool = False
    alone_since_s: float | None = None
    exchange_s: float = 0.0
    proposed_at_s: float = 0.0
    snapshot_at_s: float = 0.0
    pulse: Pulse = Pulse()
    spine: SpineView | None = None
    due_tokens: int = 0
    spine_ready: int | None = None
    missing: Mapping[CommitId, UnavailableCommit] = field(default_factory=lambda: MappingProxyType({}))
    barred: Barred = Barred()
    survey: Survey | None = field(default=None, compare=False, repr=False)

    @property
    def run_tokens(self) -> int:
        """W of the run: tokens credited on the spine (R23)."""
        return self.link.total_tokens if self.spine is None else self.spine.link.total_tokens

    @property
    def may_vote(self) -> bool:
        """Whether our acks and promises count on this base."""
        me = self.config.me
        knows_its_votes = self.link.may_vote(me.peer, me.incarnation)
        return knows_its_votes and not self.open.has_left and not self.is_leaving


@dataclass(frozen=True, slots=True)
class RoundStep:
    """The result of one event, and why, in sentences for log and status. Each is "" when there is nothing to say.

    Attributes:
        reason: what was decided about the round, or changed in it.
        remark: why an event was refused or passed over: what came, and what was expected. For debugging.
        waiting: why time passed and nothing was done about the round. No number in it changes while the cause stays the same, or
            every tick would be news.
    """

    state: RoundState
    actions: tuple[Action, ...] = ()
    reason: str = ""
    remark: str = ""
    waiting: str = ""
