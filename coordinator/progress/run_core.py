"""The run's phase as a pure state machine: gathering, training, finished.

The coordinator makes two decisions only. It decides when the first roster is complete, and signs it. It decides when the target is
reached. The peers do everything in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from protocol.host.calls import RunNews
from protocol.host.report_pace import MISSED_REPORTS
from protocol.ids import CommitId, PeerId
from protocol.tables import several

NOBODY_HERE: Final = "no peer is here; the run goes on when one comes back"
NOBODY_BACK: Final = f"{NOBODY_HERE}; if peers ended it without the host, one of them brings the rest by potluck join"
ALL_PAUSED: Final = "each peer that is here is paused"

READY_FOR_S: Final = 15.0
"""A peer counts as ready for this long after it last said so, or for MISSED_REPORTS of its reports if they are rarer."""

LOST_START_S: Final = 30.0
"""How long a peer that reports a started run has to show the start record, in seconds. A second start record would split the run
permanently.
"""


class Phase(Enum):
    """Phase of the run."""

    GATHERING = "gathering"
    TRAINING = "training"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RunRules:
    """The manifest's numbers that the phase depends on.

    Attributes:
        grace_s: how long to wait for more admitted peers once `min_members` are ready, in seconds.
    """

    min_members: int
    max_members: int
    target_tokens: int
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class RunState:
    """The phase and the facts that it depends on. Times are monotonic seconds."""

    phase: Phase = Phase.GATHERING
    ready_until: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    preparing_until: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    started_since: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    enough_since: float | None = None
    is_signing: bool = False
    head: CommitId | None = None
    index: int = 0
    total_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PeerReported:
    """A peer reported. `is_ready`: it has data, model and network and waits for the start. `has_started`: it says that it takes
    part in rounds. `again_in_s`: when it reports again.
    """

    peer: PeerId
    is_ready: bool
    has_started: bool = False
    again_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A peer said goodbye."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class StartSigned:
    """The start record is signed and durable, or was found in the ledger after a restart."""

    genesis: CommitId


@dataclass(frozen=True, slots=True)
class SigningFailed:
    """The start record was not signed, or could not be made durable."""


@dataclass(frozen=True, slots=True)
class CommitVerified:
    """The best verified head is now this commit."""

    commit: CommitId
    index: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class RunTicked:
    """Time has passed."""


RunEvent = PeerReported | PeerLeft | StartSigned | SigningFailed | CommitVerified | RunTicked


@dataclass(frozen=True, slots=True)
class SignStart:
    """Order: sign the start record for this roster, make it durable, and send it to every peer."""

    roster: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class AnnounceFinished:
    """Order: tell every watcher that the run is over, and write the final checkpoint."""


Action = SignStart | AnnounceFinished


def _note(state: RunState, event: PeerReported, now: float) -> RunState:
    ready, preparing = dict(state.ready_until), dict(state.preparing_until)
    for each in (ready, preparing):
        each.pop(event.peer, None)
    (ready if event.is_ready else preparing)[event.peer] = now + max(READY_FOR_S, MISSED_REPORTS * event.again_in_s)
    return replace(state, ready_until=MappingProxyType(ready), preparing_until=MappingProxyType(preparing))


def _forget(state: RunState, peer: PeerId) -> RunState:
    ready = {p: t for p, t in state.ready_until.items() if p != peer}
    preparing = {p: t for p, t in state.preparing_until.items() if p != peer}
    return replace(state, ready_until=MappingProxyType(ready), preparing_until=MappingProxyType(preparing))


def _note_started(state: RunState, peer: PeerId, now: float) -> RunState:
    # The first time counts: a claim that is never proven must not keep the others waiting.
    return replace(state, started_since=MappingProxyType({peer: now, **state.started_since}))


def _gather(state: RunState, rules: RunRules, now: float) -> tuple[RunState, tuple[Action, ...], str]:
    if state.is_signing:
        return state, (), "the start record is being signed"
    if any(now - since < LOST_START_S for since in state.started_since.values()):
        return state, (), "a peer says that the run has started before: waiting for the start record that it holds"
    ready = tuple(sorted(p for p, until in state.ready_until.items() if until > now))
    if len(ready) < rules.min_members:
        reason = f"waiting for peers: {len(ready)} of at least {rules.min_members} are ready"
        return replace(state, enough_since=None), (), reason
    since = now if state.enough_since is None else state.enough_since
    others = sum(1 for until in state.preparing_until.values() if until > now)
    if others and now - since < rules.grace_s and len(ready) < rules.max_members:
        return (
            replace(state, enough_since=since),
            (),
            f"ready: {several(len(ready), 'peer')}; waiting a moment for {others} more",
        )
    roster = ready[: rules.max_members]
    state = replace(state, enough_since=since, is_signing=True)
    return state, (SignStart(roster),), f"ready: {several(len(roster), 'peer')}; the run starts"


def _train(state: RunState, rules: RunRules) -> tuple[RunState, tuple[Action, ...], str]:
    if state.total_tokens < rules.target_tokens:
        return state, (), f"{state.total_tokens:,} of {rules.target_tokens:,} tokens are committed"
    reason = f"the target of {rules.target_tokens:,} tokens is reached"
    return replace(state, phase=Phase.FINISHED), (AnnounceFinished(),), reason


def step(state: RunState, event: RunEvent, rules: RunRules, now: float) -> tuple[RunState, tuple[Action, ...], str]:
    """Apply one event. Returns the new state, the orders, and a sentence with the reason. `now` is monotonic seconds."""
    match event:
        case PeerReported() if state.phase is Phase.GATHERING:
            state = _note(state, event, now)
            if event.has_started:
                state = _note_started(state, event.peer, now)
        case PeerLeft(peer) if state.phase is Phase.GATHERING:
            state = _forget(state, peer)
        case StartSigned(genesis) if state.phase is Phase.GATHERING:
            state = replace(state, phase=Phase.TRAINING, head=genesis, is_signing=False)
        case SigningFailed() if state.phase is Phase.GATHERING:
            # An immediate retry would fail again. The next report or tick retries.
            return replace(state, is_signing=False), (), "the start record could not be signed; it is tried again"
        case CommitVerified(commit, index, total_tokens) if state.phase is not Phase.GATHERING:
            state = replace(state, head=commit, index=index, total_tokens=total_tokens)
        case _:
            pass
    match state.phase:
        case Phase.GATHERING:
            return _gather(state, rules, now)
        case Phase.TRAINING:
            return _train(state, rules)
        case Phase.FINISHED:
            return state, (), f"the run is over: {state.total_tokens:,} tokens are committed"


def is_here(row: Mapping[str, object]) -> bool:
    """Whether a peer takes part in the run now. `row`: as /api/status has it."""
    return row.get("state") not in ("left", "silent") and row.get("is_banned") is not True


def is_same_news(one: RunNews, other: RunNews) -> bool:
    """Whether two events of the watch tell the same, apart from the reason and the tokens."""
    return (one.phase, one.head, one.is_final_checkpoint_written) == (
        other.phase,
        other.head,
        other.is_final_checkpoint_written,
    )


def why_waiting(states_here: Collection[str], num_heard: int, num_away: int) -> str:
    """Why no peer trains: none of those that ever came is here, or all are paused; empty while one may train.

    Args:
        states_here: the states of the peers that are here.
        num_heard: peers that this process of the host has heard.
        num_away: contributors that only earlier ones heard.
    """
    if not states_here:
        return NOBODY_HERE if num_heard else NOBODY_BACK if num_away else ""
    return ALL_PAUSED if all(state == "paused" for state in states_here) else ""
