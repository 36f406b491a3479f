"""A group of replicas through synced steps and rounds, as their owner decides it: who serves, which step, what goes into a round.

All replicas of a stage hold the same parameters and moments at every point of the run. Each step is one of synced.py; when it is
decided every stage says the square of its summed gradient, and all take the step together. Who comes in the middle of a round loads
its stage from a replica that has it; the step waits with its end until it has, for a while. At the end of a round every replica brings
what its stage holds into that stage's round with its part of the tokens: so whoever dies there changes nothing of the mean.

A stage that nobody has any more has nowhere its moments and what was trained since the commit: the group ends, which is said, and the
next one begins with the run's newest parameters as soon as somebody has each stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from protocol.errors import ConfigError
from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.pipeline.stage_machine import Point
from protocol.pipeline.synced import synced
from protocol.pipeline.synced.synced import SyncedState
from protocol.pipeline.synced_routing import SyncedConfig

Phase = Literal["gathering", "stepping", "squaring", "over"]


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Numbers of a group.

    Attributes:
        steps: of each step.
        inner_steps: of a round.
        step_tokens: of a step whose micro-batches all count.
        suspect_after_s: of silence after which a replica is taken for lost.
        gather_within_s: a round's first step waits for so long for who is not ready while there is somebody for each stage.
        load_within_s: a step's end waits for so long for who loads its weights.
        heldout_passes: micro-batches of held-out text in a round's first step, by which the run's committed parameters are measured.
    """

    steps: SyncedConfig
    inner_steps: int
    step_tokens: int
    suspect_after_s: float = 4.0
    gather_within_s: float = 5.0
    load_within_s: float = 30.0
    heldout_passes: int = 0

    def __post_init__(self) -> None:
        if self.inner_steps < 1 or self.step_tokens < self.steps.num_micro_batches:
            raise ConfigError(f"{self}", "at least 1 inner step, and a token for each micro-batch")


@dataclass(frozen=True, slots=True)
class Came:
    """A peer that serves nothing could serve this stage."""

    peer: PeerId
    stage: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A replica holds the weights of this point; `weights_hash` says which, where a round begins."""

    peer: PeerId
    at: Point
    weights_hash: bytes = b""


@dataclass(frozen=True, slots=True)
class Heard:
    """A sign of life."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Lost:
    """It refused connections, or said goodbye."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class InStep:
    """What happened within the step at this point."""

    at: Point
    event: synced.Event


@dataclass(frozen=True, slots=True)
class Squared:
    """A replica has added up the sums of its stage."""

    peer: PeerId
    at: Point
    square: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed; for `held_up_s` of it the owner itself did nothing."""

    held_up_s: float = 0.0


Event = Came | Ready | Heard | Lost | InStep | Squared | Ticked


@dataclass(frozen=True, slots=True)
class Begin:
    """Tell a peer to serve a stage from this point on, as the donors hold it; without any, with the run's newest parameters."""

    peer: PeerId
    stage: int
    at: Point
    donors: tuple[PeerId, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Beside:
    """Tell a stage's replicas who they are."""

    stage: int
    peers: tuple[PeerId, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class OfStep:
    """What the step's own machine orders."""

    at: Point
    order: synced.Order
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TakeStep:
    """Tell these replicas to take the step; nothing that was held for it is needed any more."""

    at: Point
    whole_square: float
    counted: int
    peers: tuple[PeerId, ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Bring:
    """Tell each replica to bring its stage into the round, with so many tokens."""

    at: Point
    tokens: tuple[tuple[PeerId, int], ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class End:
    """The group is no more; tell who is left."""

    peers: tuple[PeerId, ...]
    lost_tokens: int
    reason: str


Order = Begin | Beside | OfStep | TakeStep | Bring | End


@dataclass(frozen=True)
class Member:
    """A replica, or a peer that is to become one.

    Attributes:
        is_ready: it holds the weights of the present point.
        is_loading: it takes them from a donor.
        since_s: when it was told to, monotonic.
        work_s: how long it takes for a piece of work, by the steps before; None before the first.
    """

    stage: int
    is_ready: bool = False
    is_loading: bool = False
    since_s: float = 0.0
    heard_s: float = 0.0
    work_s: float | None = None


@dataclass(frozen=True)
class GroupState:
    """What the owner knows of its group.

    Attributes:
        at: the point whose weights the replicas hold.
        whole_since_s: since when somebody of each stage waits for a round's first step; None where that is not so.
        step: while it is under way.
        commit: of the step, while squares are waited for.
        weights: hash of each stage's parameters, where a round begins.
        tokens: that count in this round so far.
        trained_tokens: of the group in all.
    """

    config: GroupConfig
    seed: int
    at: Point
    members: Mapping[PeerId, Member] = field(default_factory=lambda: MappingProxyType({}))
    phase: Phase = "gathering"
    whole_since_s: float | None = None
    step: SyncedState | None = None
    commit: synced.Commit | None = None
    squares: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    weights: Mapping[int, bytes] = field(default_factory=lambda: MappingProxyType({}))
    tokens: int = 0
    trained_tokens: int = 0

    def of_stage(self, stage: int, *, ready: bool = False) -> tuple[PeerId, ...]:
        """Its replicas, in the order of their names; those that hold this point's weights where `ready`."""
        found = (peer for peer, one in self.members.items() if one.stage == stage and (one.is_ready or not ready))
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Step:
    """The state after an event, what is ordered, why an event was passed over, and what is waited for."""

    state: GroupState
    orders: tuple[Order, ...] = ()
    remark: str = ""
    waiting: str = ""


def begin(config: GroupConfig, seed: int, members: Mapping[PeerId, int], at: Point, now_s: float) -> Step:
    """A group of these peers, by their stages, from where a round begins."""
    made = {peer: Member(stage, since_s=now_s, heard_s=now_s) for peer, stage in sorted(members.items())}
    state = GroupState(config, seed, at, MappingProxyType(made))
    orders = [Begin(peer, one.stage, at, (), "a group begins") for peer, one in made.items()]
    return Step(state, (*orders, *_beside(state, range(config.steps.num_stages))))


def step(state: GroupState, event: Event, now_s: float) -> Step:
    """Take one event."""
    if state.phase == "over":
        return Step(state, remark="the group is no more")
    match event:
        case Came():
            done = _came(state, event, now_s)
        case Ready():
            done = _ready(state, event, now_s)
        case Heard():
            done = Step(_heard(state, event.peer, now_s))
        case Lost():
            done = _lost(state, event.peer, now_s, "it is gone")
        case InStep():
            done = _in_step(state, event, now_s)
        case Squared():
            done = _squared(state, event, now_s)
        case Ticked():
            done = _ticked(state, event, now_s)
    return _directed(done, now_s)


def _directed(done: Step, now_s: float) -> Step:
    """Ends the group where a stage has nobody, begins the step where all are there for it."""
    state = done.state
    if state.phase == "over":
        return done
    empty = [stage for stage in range(state.config.steps.num_stages) if not _has_any(state, stage)]
    if empty:
        reason = f"stages {empty} have nobody left: all go back to the last commit"
        end = End(tuple(state.members), state.tokens, reason)
        return Step(replace(state, phase="over"), (*done.orders, end), done.remark)
    if state.phase != "gathering":
        return done
    lacking = [stage for stage in range(state.config.steps.num_stages) if not state.of_stage(stage, ready=True)]
    late = [peer for peer, member in state.members.items() if not member.is_ready]
    since_s = None if lacking else now_s if state.whole_since_s is None else state.whole_since_s
    state = replace(state, whole_since_s=since_s)
    if since_s is None or (late and now_s - since_s < state.config.gather_within_s):
        named = ", ".join(map(short, late))
        return Step(state, done.orders, done.remark, f"{named} at step {state.at.step} of round {state.at.round + 1}")
    begun = _begun(state, now_s)
    return Step(begun.state, done.orders + begun.orders, done.remark, begun.waiting)


def _has_any(state: GroupState, stage: int) -> bool:
    """Somebody has it, or comes to have it without one who does: before a round's first step everybody begins from its commit."""
    of_stage = [member for member in state.members.values() if member.stage == stage]
    return any(member.is_ready or (state.at.step == 0 and not member.is_loading) for member in of_stage)


def _begun(state: GroupState, now_s: float) -> Step:
    """The step at this point, with all that are ready."""
    seed = state.seed + state.at.round * (state.config.inner_steps + 1) + state.at.step
    num_heldout = state.config.heldout_passes if state.at.step == 0 else 0
    state = replace(
        state, phase="stepping", step=SyncedState(state.config.steps, seed, num_heldout=num_heldout), commit=None
    )
    ready = [(peer, member) for peer, member in state.members.items() if member.is_ready]
    joined = tuple(synced.ReplicaJoined(peer, member.stage, member.work_s) for peer, member in ready)
    return _fed(state, synced.AllJoined(joined), now_s)


def _fed(state: GroupState, event: synced.Event, now_s: float) -> Step:
    """The step's own machine takes an event; what it commits is told with it."""
    if state.step is None:
        return Step(state, remark="no step is under way")
    done = synced.step(state.step, event, now_s)
    state = replace(state, step=done.state)
    for order in done.orders:
        if isinstance(order, synced.Commit):
            state = replace(state, phase="squaring", commit=order, squares=MappingProxyType({}))
    orders = tuple(OfStep(state.at, order, order.reason) for order in done.orders)
    return Step(state, orders, done.remark, done.waiting)


def _came(state: GroupState, event: Came, now_s: float) -> Step:
    if event.peer in state.members or not 0 <= event.stage < state.config.steps.num_stages:
        return Step(state, remark=f"{short(event.peer)} serves already, or stage {event.stage} is none")
    if state.phase == "squaring":
        return Step(state, remark="nobody comes in between a step's decision and its end")
    return _told_to_load(state, event.peer, event.stage, now_s, "it comes to serve")


def _told_to_load(state: GroupState, peer: PeerId, stage: int, now_s: float, reason: str) -> Step:
    donors = tuple(other for other in state.of_stage(stage, ready=True) if other != peer)
    if not donors:
        return Step(state, remark=f"nobody has stage {stage} to give it to {short(peer)}")
    member = Member(stage, is_loading=True, since_s=now_s, heard_s=now_s)
    state = _with(state, peer, member)
    orders: tuple[Order, ...] = (Begin(peer, stage, state.at, donors, reason), *_beside(state, [stage]))
    held = _held(state, now_s)
    return Step(held.state, orders + held.orders)


def _ready(state: GroupState, event: Ready, now_s: float) -> Step:
    member = state.members.get(event.peer)
    if member is None:
        return Step(state, remark=f"{short(event.peer)} serves nothing here")
    state = _heard(state, event.peer, now_s)
    if event.at != state.at or state.phase == "squaring":
        if event.at > state.at or state.phase == "squaring":
            return Step(state, remark=f"{short(event.peer)} is at {event.at}, the group at {state.at}")
        return _told_to_load(state, event.peer, member.stage, now_s, f"it stands at {event.at}")
    expected = state.weights.get(member.stage, event.weights_hash)
    if event.weights_hash and expected != event.weights_hash:
        return _told_to_load(state, event.peer, member.stage, now_s, "its parameters are not those of its stage")
    if event.weights_hash:
        state = replace(state, weights=MappingProxyType({**state.weights, member.stage: event.weights_hash}))
    state = _with(state, event.peer, replace(state.members[event.peer], is_ready=True, is_loading=False))
    if state.phase != "stepping":
        return Step(state)
    joined = _fed(state, synced.ReplicaJoined(event.peer, member.stage), now_s)
    held = _held(joined.state, now_s)
    return Step(held.state, joined.orders + held.orders)


def _held(state: GroupState, now_s: float) -> Step:
    """The step's end waits while anybody loads its weights, each for a while."""
    if state.step is None or state.phase != "stepping":
        return Step(state)
    is_held = any(
        member.is_loading and now_s - member.since_s < state.config.load_within_s for member in state.members.values()
    )
    return Step(state) if is_held == state.step.is_held else _fed(state, synced.Held(is_held), now_s)


def _heard(state: GroupState, peer: PeerId, now_s: float) -> GroupState:
    member = state.members.get(peer)
    return state if member is None else _with(state, peer, replace(member, heard_s=now_s))


def _with(state: GroupState, peer: PeerId, member: Member) -> GroupState:
    return replace(state, members=MappingProxyType({**state.members, peer: member}))


def _beside(state: GroupState, stages: Iterable[int], reason: str = "who serves it has changed") -> tuple[Order, ...]:
    return tuple(Beside(stage, state.of_stage(stage), reason) for stage in stages)


def _lost(state: GroupState, peer: PeerId, now_s: float, reason: str) -> Step:
    member = state.members.get(peer)
    if member is None:
        return Step(state, remark=f"{short(peer)} serves nothing here")
    members = {other: one for other, one in state.members.items() if other != peer}
    state = replace(state, members=MappingProxyType(members))
    orders = _beside(state, [member.stage], f"{short(peer)}: {reason}")
    if state.phase != "stepping":
        return Step(state, orders)
    fed = _fed(state, synced.ReplicaLost(peer), now_s) if member.is_ready else Step(state)
    held = _held(fed.state, now_s)
    return Step(held.state, orders + fed.orders + held.orders)


def _in_step(state: GroupState, event: InStep, now_s: float) -> Step:
    if event.at != state.at or state.phase != "stepping":
        return Step(state, remark=f"a word about {event.at}, the group is at {state.at}")
    return _fed(state, event.event, now_s)


def _squared(state: GroupState, event: Squared, now_s: float) -> Step:
    member = state.members.get(event.peer)
    if member is None or event.at != state.at or state.commit is None:
        return Step(state, remark=f"a square of {short(event.peer)} at {event.at}, the group is at {state.at}")
    commit = state.commit
    state = replace(state, squares=MappingProxyType({member.stage: event.square, **state.squares}))
    if len(state.squares) < state.config.steps.num_stages:
        return Step(state)
    whole, counted = sum(state.squares[stage] for stage in sorted(state.squares)), len(commit.counted)
    config, peers = state.config, tuple(peer for peer, one in state.members.items() if one.is_ready)
    take = TakeStep(state.at, whole, counted, peers, "every stage has added up its sums")
    is_taken = math.isfinite(whole) and counted > 0
    tokens = config.step_tokens * counted // config.steps.num_micro_batches if is_taken else 0
    shown = {} if state.step is None else {peer: one.shown_s for peer, one in state.step.replicas.items()}
    members = {peer: replace(one, work_s=shown.get(peer, one.work_s)) for peer, one in state.members.items()}
    state = replace(
        state,
        members=MappingProxyType(members),
        at=Point(state.at.round, state.at.step + 1),
        tokens=state.tokens + tokens,
        trained_tokens=state.trained_tokens + tokens,
        weights=MappingProxyType({}),
        step=None,
        commit=None,
    )
    after = _round_over(state, now_s) if state.at.step == config.inner_steps else _begun(state, now_s)
    return Step(after.state, (take, *after.orders))


def _round_over(state: GroupState, now_s: float) -> Step:
    orders = list[tuple[PeerId, int]]()
    for stage in range(state.config.steps.num_stages):
        peers = state.of_stage(stage, ready=True)
        for place, peer in enumerate(peers):
            orders.append((peer, state.tokens // len(peers) + (1 if place < state.tokens % len(peers) else 0)))
    bring = Bring(state.at, tuple(orders), "the round's steps are done")
    kept = {peer: replace(one, is_ready=False, since_s=now_s) for peer, one in state.members.items() if one.is_ready}
    at = Point(state.at.round + 1, 0)
    gone = tuple(peer for peer in state.members if peer not in kept)
    state = replace(state, at=at, members=MappingProxyType(kept), phase="gathering", whole_since_s=None, tokens=0)
    ends = (End(gone, 0, "the round is over before it had its stage"),) if gone else ()
    return Step(state, (bring, *ends))


def _ticked(state: GroupState, event: Ticked, now_s: float) -> Step:
    limit_s = state.config.suspect_after_s + event.held_up_s
    orders = list[Order]()
    for peer, member in list(state.members.items()):
        if now_s - member.heard_s > limit_s:
            done = _lost(state, peer, now_s, f"it was not heard for {limit_s:.1f} s")
            state, orders = done.state, [*orders, *done.orders]
    held = _held(state, now_s)
    ticked = _fed(held.state, synced.Ticked(), now_s) if held.state.phase == "stepping" else Step(held.state)
    return Step(ticked.state, (*orders, *held.orders, *ticked.orders), waiting=ticked.waiting)
