"""A lane as a whole: its members step together, go back together, and end together. `step(state, event, now) -> LaneTransition`.

The keeper of a lane receives its members' gradient squares, snapshots and heartbeats. A step is agreed when all stages have
reported their squares. When a member is lost, a spare takes its seat and all stages go back to the newest snapshot that all of
them hold. The work since then counts as lost. Without a spare within the timeout the lane dissolves. It enters the round with the
tokens of that snapshot, which its survivors and the lost member's neighbour hold, and the survivors become spares.

A lane is one data peer to the run, so it continues, or enters the round, as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Final, Literal

from protocol.errors import LocalProtocolError
from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.pipeline.stage_machine import LaneConfig, Point

STALLED_STEPS: Final = 10.0
"""Timeout for the next step, in multiples of the lane's slowest step."""

LOADED_WITHIN_S: Final = 600.0
"""Timeout for loading: a spare fetches a whole stage with its moments, and a new lane makes and copies its stages."""

FIRST_STEP_WITHIN_S: Final = 600.0
"""Timeout for these members' first step, which compiles kernels and whose duration is not known yet. A member that dies meanwhile
is found by its silence.
"""

Phase = Literal["running", "wanting", "loading", "over"]


@dataclass(frozen=True, slots=True)
class SquareReported:
    """A stage is done with its passes; the square of its gradient."""

    peer: PeerId
    epoch: int
    at: Point
    square: float


@dataclass(frozen=True, slots=True)
class SnapshotReported:
    """A stage's member and its neighbour hold its snapshot of a point."""

    peer: PeerId
    epoch: int
    at: Point


@dataclass(frozen=True, slots=True)
class LoadedReported:
    """A stage has loaded the snapshot that the lane goes back to."""

    peer: PeerId
    epoch: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A stage's snapshot is lost, or cannot be fetched."""

    peer: PeerId
    epoch: int


@dataclass(frozen=True, slots=True)
class MemberHeard:
    """A heartbeat."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A connection was refused or reset, or the member said goodbye."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class SparesListed:
    """Reachable peers that fit the given stages and serve no lane; best first."""

    spares: tuple[tuple[PeerId, frozenset[int]], ...]


@dataclass(frozen=True, slots=True)
class LaneTicked:
    """Time passed. For `lag_s` of it the keeper itself was not running and heard nobody."""

    lag_s: float = 0.0


Event = (
    SquareReported
    | SnapshotReported
    | LoadedReported
    | LoadFailed
    | MemberHeard
    | MemberLost
    | SparesListed
    | LaneTicked
)


@dataclass(frozen=True, slots=True)
class AgreeStep:
    """Tell all members `StepAgreed`."""

    epoch: int
    at: Point
    whole_square: float
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class KeepFrom:
    """Tell all members that every stage holds the snapshot of this point. Older ones may be deleted."""

    at: Point
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class GoBack:
    """Tell these members, in the order of their stages, `WentBack`. A new member fetches its stage's snapshot from a holder."""

    epoch: int
    at: Point
    counted: int
    members: tuple[PeerId, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Resume:
    """Tell all members `Resumed`."""

    epoch: int
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Dissolve:
    """The lane ends. Each stage's snapshot of this point enters the round with this number of tokens, or none enters with 0. The
    members become spares.

    Attributes:
        holders: the peer that has each stage's snapshot and contributes it; empty with 0 tokens.
    """

    at: Point
    tokens: int
    survivors: tuple[PeerId, ...]
    holders: tuple[PeerId, ...]
    reason: str


Order = AgreeStep | KeepFrom | GoBack | Resume | Dissolve


@dataclass(frozen=True)
class LaneState:
    """A keeper's view of a lane.

    Attributes:
        members: by stage.
        heard_s: when each was heard last, monotonic.
        at: the point at which the current inner step began.
        counted: inner steps of the round that count, at each point that may still be needed.
        squares: reported for the current step, by stage.
        saved: the newest point of which every stage holds a snapshot; None before the first.
        copied: stages that hold a newer one, by its point.
        lost: stages without a member.
        wanting_since_s: time since which a stage has no member.
        loaded: stages that have loaded the snapshot.
        fresh: stages whose members joined after the snapshot, and may have neither it nor their neighbour's.
        spares: peers that could take a seat, with the stages that fit.
        lost_tokens: trained and undone since the lane began.
        moved_s: when all members last completed a step, a snapshot or a way back.
        slowest_s: the longest time of a step; the first step of a round includes the measuring before it.
        is_proven: whether these members have taken a step together.
    """

    config: LaneConfig
    members: tuple[PeerId, ...]
    heard_s: Mapping[PeerId, float]
    at: Point
    epoch: int = 0
    phase: Phase = "running"
    counted: Mapping[Point, int] = field(default_factory=lambda: MappingProxyType({}))
    squares: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    saved: Point | None = None
    copied: Mapping[Point, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))
    lost: frozenset[int] = frozenset()
    wanting_since_s: float = 0.0
    loaded: frozenset[int] = frozenset()
    fresh: frozenset[int] = frozenset()
    spares: tuple[tuple[PeerId, frozenset[int]], ...] = ()
    lost_tokens: int = 0
    moved_s: float = 0.0
    slowest_s: float = 0.0
    is_proven: bool = False

    @property
    def living(self) -> tuple[PeerId, ...]:
        """Members that are not lost."""
        return tuple(member for stage, member in enumerate(self.members) if stage not in self.lost)


def neighbour(stage: int, num_stages: int) -> int:
    """The stage whose member holds a second copy of this one's snapshots; itself if there is only one stage."""
    return (stage + 1) % num_stages


@dataclass(frozen=True, slots=True)
class LaneTransition:
    """The state after an event, the orders, and why an event was ignored."""

    state: LaneState
    orders: tuple[Order, ...] = ()
    remark: str = ""


def begin(config: LaneConfig, members: tuple[PeerId, ...], at: Point, now_s: float) -> LaneState:
    """A lane of these peers, one per stage. All hold the run's state of this point.

    Raises:
        LocalProtocolError: the number of peers is not the number of stages.
    """
    if len(members) != config.num_stages or len(set(members)) != len(members):
        raise LocalProtocolError(f"a lane of {len(members)} members", f"{config.num_stages}, each once")
    heard = MappingProxyType(dict.fromkeys(members, now_s))
    return LaneState(config, members, heard, at, counted=MappingProxyType({at: 0}), moved_s=now_s)


def step(state: LaneState, event: Event, now_s: float) -> LaneTransition:
    """Handle one event."""
    if state.phase == "over":
        return LaneTransition(state, remark="the lane is no more")
    done = _step(state, event, now_s)
    after = done.state
    if (after.at, after.phase, after.saved) == (state.at, state.phase, state.saved):
        return done
    took_s = now_s - state.moved_s if after.at > state.at else 0.0
    moved = replace(after, moved_s=now_s, slowest_s=max(state.slowest_s, took_s))
    return LaneTransition(moved, done.orders, done.remark)


def _step(state: LaneState, event: Event, now_s: float) -> LaneTransition:
    match event:
        case SparesListed():
            return _replaced(replace(state, spares=event.spares), now_s)
        case LaneTicked():
            return _ticked(_unheard(state, event.lag_s), now_s)
        case _:
            stage = _stage_of(state, event.peer)
            if stage is None:
                return LaneTransition(state, remark=f"{short(event.peer)} is no member of this lane")
            return _from_member(state, event, stage, now_s)


def _from_member(
    state: LaneState,
    event: SquareReported | SnapshotReported | LoadedReported | LoadFailed | MemberHeard | MemberLost,
    stage: int,
    now_s: float,
) -> LaneTransition:
    if isinstance(event, MemberLost):
        return _lost(state, frozenset({stage}), now_s, f"{short(event.peer)}, which had stage {stage}, is gone")
    state = replace(state, heard_s=MappingProxyType({**state.heard_s, event.peer: now_s}))
    if isinstance(event, MemberHeard):
        return LaneTransition(state)
    if event.epoch != state.epoch:
        return LaneTransition(
            state, remark=f"{type(event).__name__} of time line {event.epoch}, here it is {state.epoch}"
        )
    match event:
        case SquareReported():
            return _square_reported(state, event, stage)
        case SnapshotReported():
            return _snapshot_reported(state, event, stage)
        case LoadedReported():
            return _loaded(state, stage)
        case LoadFailed():
            return _dissolved(
                state, 0, f"the snapshot of stage {stage} is lost, and with it the lane's work of this round"
            )


def _stage_of(state: LaneState, peer: PeerId) -> int | None:
    stages = [stage for stage, member in enumerate(state.members) if member == peer and stage not in state.lost]
    return stages[0] if stages else None


def _square_reported(state: LaneState, event: SquareReported, stage: int) -> LaneTransition:
    if event.at != state.at or stage in state.squares:
        return LaneTransition(state, remark=f"a gradient of {event.at} from stage {stage}, here it is {state.at}")
    squares = {**state.squares, stage: event.square}
    if len(squares) < state.config.num_stages:
        return LaneTransition(replace(state, squares=MappingProxyType(squares)))
    # summed in the order of the stages, so that the result does not depend on arrival
    whole = sum(squares[place] for place in range(state.config.num_stages))
    agreed = AgreeStep(state.epoch, state.at, whole, "all stages are done with the step")
    is_last = state.at.step + 1 >= state.config.inner_steps
    counted = state.counted[state.at] + isfinite(whole)
    after = Point(state.at.round, state.at.step + 1)
    following = {after: counted, **({Point(state.at.round + 1, 0): 0} if is_last else {})}
    moved = replace(
        state,
        at=Point(state.at.round + 1, 0) if is_last else after,
        squares=MappingProxyType({}),
        counted=MappingProxyType({**state.counted, **following}),
        is_proven=True,
    )
    return LaneTransition(moved, (agreed,))


def _snapshot_reported(state: LaneState, event: SnapshotReported, stage: int) -> LaneTransition:
    if event.at not in state.counted or (state.saved is not None and event.at <= state.saved):
        return LaneTransition(state, remark=f"a snapshot of {event.at} from stage {stage}, which nobody asks for")
    stages = state.copied.get(event.at, frozenset()) | {stage}
    if len(stages) < state.config.num_stages:
        return LaneTransition(replace(state, copied=MappingProxyType({**state.copied, event.at: stages})))
    moved = replace(
        state,
        saved=event.at,
        copied=MappingProxyType({at: held for at, held in state.copied.items() if at > event.at}),
        counted=MappingProxyType({at: count for at, count in state.counted.items() if at >= event.at}),
    )
    return LaneTransition(moved, (KeepFrom(event.at, "every stage holds this snapshot"),))


def _unheard(state: LaneState, lag_s: float) -> LaneState:
    """Extend all deadlines by the time in which the keeper was not running: members were not silent then."""
    if lag_s <= 0.0:
        return state
    return replace(state, heard_s=MappingProxyType({peer: at_s + lag_s for peer, at_s in state.heard_s.items()}))


def _ticked(state: LaneState, now_s: float) -> LaneTransition:
    silent = frozenset(
        stage
        for stage, member in enumerate(state.members)
        if stage not in state.lost and now_s - state.heard_s[member] > state.config.suspect_after_s
    )
    if silent:
        return _lost(state, silent, now_s, f"nothing was heard of stages {sorted(silent)}")
    stuck = _stuck(state, now_s)
    if not stuck:
        return _replaced(state, now_s)
    reason = f"stages {sorted(stuck)} answer and do not get on"
    if len(stuck) < state.config.num_stages:
        return _lost(state, stuck, now_s, reason)
    return _dissolved(state, state.counted[state.saved] if state.saved is not None else 0, reason)


def _stuck(state: LaneState, now_s: float) -> frozenset[int]:
    """Stages for which others have waited too long. Between rounds a lane waits for the commit, which it does not make itself."""
    waits_for_commit = state.phase == "running" and state.at.step == 0 and state.saved not in (None, state.at)
    if waits_for_commit or state.phase == "wanting" or now_s - state.moved_s <= _patience_s(state):
        return frozenset()
    begins = state.phase == "running" and state.saved is None
    done = state.copied.get(min(state.counted), frozenset()) if begins else frozenset(state.squares)
    return frozenset(range(state.config.num_stages)) - (state.loaded if state.phase == "loading" else done)


def _patience_s(state: LaneState) -> float:
    learned_s = max(state.config.stalled_after_s, STALLED_STEPS * state.slowest_s)
    if state.phase == "loading" or state.saved is None:
        return max(learned_s, LOADED_WITHIN_S)
    return learned_s if state.is_proven else max(learned_s, FIRST_STEP_WITHIN_S)


def _lost(state: LaneState, stages: frozenset[int], now_s: float, reason: str) -> LaneTransition:
    since_s = state.wanting_since_s if state.phase == "wanting" else now_s
    wanting = replace(state, phase="wanting", lost=state.lost | stages, wanting_since_s=since_s)
    if state.saved is None:
        return _dissolved(wanting, 0, f"{reason} before the first snapshot")
    return _replaced(wanting, now_s, reason)


def _replaced(state: LaneState, now_s: float, reason: str = "") -> LaneTransition:
    """Give every lost stage a spare, or wait, or end the lane."""
    if state.phase != "wanting" or state.saved is None:
        return LaneTransition(state)
    members, left = list(state.members), [spare for spare in state.spares if spare[0] not in state.members]
    for stage in sorted(state.lost):
        found = next((spare for spare in left if stage in spare[1]), None)
        if found is not None:
            left.remove(found)
            members[stage] = found[0]
    if all(members[stage] != state.members[stage] for stage in state.lost):
        return _going_back(state, tuple(members), tuple(left), now_s, reason)
    if now_s - state.wanting_since_s < state.config.spare_within_s:
        return LaneTransition(state, remark=f"no spare yet for stages {sorted(state.lost)}")
    counted = state.counted[state.saved]
    return _dissolved(
        state, counted, f"no spare for stages {sorted(state.lost)} within {state.config.spare_within_s:g} s"
    )


def _going_back(
    state: LaneState,
    members: tuple[PeerId, ...],
    spares: tuple[tuple[PeerId, frozenset[int]], ...],
    now_s: float,
    reason: str,
) -> LaneTransition:
    saved = state.saved if state.saved is not None else state.at
    moved = replace(
        state,
        members=members,
        spares=spares,
        heard_s=MappingProxyType(dict.fromkeys(members, now_s)),
        epoch=state.epoch + 1,
        phase="loading",
        at=Point(saved.round + 1, 0) if saved.step >= state.config.inner_steps else saved,
        squares=MappingProxyType({}),
        copied=MappingProxyType({}),
        counted=MappingProxyType(_kept_counts(state, saved)),
        lost=frozenset(),
        loaded=frozenset(),
        fresh=state.fresh | state.lost,
        is_proven=False,
        lost_tokens=state.lost_tokens + _since(state, saved),
    )
    order = GoBack(moved.epoch, saved, state.counted[saved], members, reason or "a spare is there")
    return LaneTransition(moved, (order,))


def _kept_counts(state: LaneState, saved: Point) -> dict[Point, int]:
    """Counts at the snapshot, and at the next round's start if only that is still to come."""
    counts = {saved: state.counted[saved]}
    if saved.step >= state.config.inner_steps:
        counts[Point(saved.round + 1, 0)] = 0
    return counts


def _since(state: LaneState, saved: Point) -> int:
    """Tokens that counted after the snapshot."""
    ends: dict[int, int] = {}
    for at, count in state.counted.items():
        ends[at.round] = max(ends.get(at.round, 0), count)
    steps = sum(ends.values()) - state.counted[saved]
    return steps * state.config.step_tokens


def _loaded(state: LaneState, stage: int) -> LaneTransition:
    if state.phase != "loading":
        return LaneTransition(state, remark=f"stage {stage} has loaded a snapshot, and the lane is {state.phase}")
    loaded = state.loaded | {stage}
    if len(loaded) < state.config.num_stages:
        return LaneTransition(replace(state, loaded=loaded))
    running = replace(state, phase="running", loaded=loaded, fresh=frozenset())
    return LaneTransition(running, (Resume(state.epoch, "all stages are back"),))


def _holder(state: LaneState, stage: int) -> PeerId | None:
    """The peer with a stage's newest complete snapshot: its member, or the neighbour. A new member has it once it has loaded it;
    by then a new neighbour was given it, too.
    """
    copy_stage, has_loaded = neighbour(stage, state.config.num_stages), stage in state.loaded
    for place in (stage, copy_stage):
        if place not in state.lost and (place not in state.fresh or has_loaded):
            return state.members[place]
    return None


def _dissolved(state: LaneState, counted: int, reason: str) -> LaneTransition:
    at = state.saved if state.saved is not None else state.at
    holders = tuple(_holder(state, stage) for stage in range(state.config.num_stages))
    if counted and None in holders:
        counted, reason = 0, f"{reason}, and nobody has the snapshot of stage {holders.index(None)}"
    tokens = counted * state.config.step_tokens
    lost = state.lost_tokens + max(0, _since(state, at)) + (state.counted[at] - counted) * state.config.step_tokens
    bringing = tuple(peer for peer in holders if peer is not None) if tokens else ()
    order = Dissolve(at, tokens, state.living, bringing, reason)
    return LaneTransition(replace(state, phase="over", lost_tokens=lost), (order,))
