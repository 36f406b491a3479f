"""The next actions of one stage of a lane: `step(state, event) -> StageTransition`. lanes/lane_machine.py has the lane as a whole.

A lane has one replica of each stage and works as one data peer does. Within an inner step, the stage runs its passes in the
schedule's order, each when its input is here. Then it reports its part of the gradient's norm, and steps when the lane has agreed
on the whole. Snapshots are taken at the start of a round, at its end, and every few inner steps between; the next steps do not wait
until they are written. The lane contributes to the round when every stage holds the snapshot of its end. A member lost after that does
not change it: all of the lane's work counts at every stage. When the lane goes back, everything of the earlier timeline is refused: an
`epoch` numbers timelines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from protocol.errors import ConfigError, LocalProtocolError
from protocol.frozen import replace
from protocol.pipeline.schedule import Pass, passes
from protocol.rounds.schedule.liveness_timing import LANE_SUSPECT_AFTER_S

Phase = Literal["passing", "agreeing", "stepping", "copying", "ending", "loading", "loaded", "averaging", "over"]


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """Settings of a lane, the same at all of its stages.

    Attributes:
        num_micro_batches: of an inner step.
        inner_steps: of a round (H).
        snapshot_steps: inner steps between two snapshots (c).
        step_tokens: of an inner step.
        spare_within_s: how long a lane waits for a spare before it dissolves.
        suspect_after_s: silence of a member after which it counts as lost.
        stalled_after_s: timeout of a step; ten times the slowest one if steps take long.
        heldout_passes: forward-only micro-batches at the first inner step of a round, after those of the step. They measure the
            run's committed parameters. Their numbers follow those of a step.
    """

    schedule: str
    num_stages: int
    num_micro_batches: int
    inner_steps: int
    snapshot_steps: int
    step_tokens: int
    spare_within_s: float = 2.0
    suspect_after_s: float = LANE_SUSPECT_AFTER_S
    stalled_after_s: float = 30.0
    heldout_passes: int = 0

    def __post_init__(self) -> None:
        if min(self.inner_steps, self.snapshot_steps, self.step_tokens) < 1:
            raise ConfigError(
                f"{self.inner_steps} inner steps of {self.step_tokens} tokens, a snapshot every {self.snapshot_steps}",
                "at least 1 of each",
            )
        passes(self.schedule, 0, self.num_stages, self.num_micro_batches)


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A moment between inner steps: the number of steps done in this round."""

    round: int
    step: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """The input of a pass is here and was checked: activations for a forward pass, a gradient for a backward pass."""

    epoch: int
    at: Point
    work: Pass


@dataclass(frozen=True, slots=True)
class PassDone:
    """A pass was computed, and its result was sent on."""

    epoch: int
    at: Point
    work: Pass


@dataclass(frozen=True, slots=True)
class StepAgreed:
    """The lane knows the squared norm of the whole gradient of the inner step that begins at this point."""

    epoch: int
    at: Point
    whole_square: float


@dataclass(frozen=True, slots=True)
class StepTaken:
    """The inner step was taken. If its gradient is not finite, all stages skip it, and its tokens do not count."""

    epoch: int
    at: Point
    counts: bool = True


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Parameters and moments of this point are copied. The copy is written, and brought to the neighbour, beside the next passes."""

    epoch: int
    at: Point


@dataclass(frozen=True, slots=True)
class SnapshotWhole:
    """Every stage holds its snapshot of this point (`lane.KeepFrom`)."""

    epoch: int
    at: Point


@dataclass(frozen=True, slots=True)
class WentBack:
    """The lane goes back to a snapshot, and starts another epoch there. `counted`: steps of its round that count."""

    epoch: int
    at: Point
    counted: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """Parameters and moments are those of the snapshot."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """All stages have loaded their snapshots."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """The round's commit is in this stage's parameters."""

    epoch: int
    round: int


@dataclass(frozen=True, slots=True)
class LaneDissolved:
    """The lane is dissolved."""


Event = (
    Arrived
    | PassDone
    | StepAgreed
    | StepTaken
    | SnapshotTaken
    | SnapshotWhole
    | WentBack
    | SnapshotLoaded
    | Resumed
    | Adopted
    | LaneDissolved
)


@dataclass(frozen=True, slots=True)
class RunPass:
    """Compute the pass and send its result on. Answer PassDone."""

    at: Point
    work: Pass
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TellSquare:
    """Report the square of this stage's gradient to the lane."""

    epoch: int
    at: Point
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TakeStep:
    """Clip by the whole norm and step. Answer StepTaken."""

    at: Point
    whole_square: float
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Copy parameters and moments. Answer SnapshotTaken. Beside the next passes write the copy here and to the neighbour, and report
    it to the lane. Keep the previous complete snapshot until the lane confirms this one (`lane.KeepFrom`).
    """

    epoch: int
    at: Point
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Discard all work in progress and load the snapshot of this point. Answer SnapshotLoaded, and report it to the lane."""

    epoch: int
    at: Point
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Contribute:
    """The round's inner steps are done: contribute this number of tokens to the averaging of this stage's unit. Answer Adopted."""

    round: int
    tokens: int
    reason: str = field(default="", compare=False)


Order = RunPass | TellSquare | TakeStep | TakeSnapshot | LoadSnapshot | Contribute


@dataclass(frozen=True)
class StageState:
    """The state of a stage of a lane.

    Attributes:
        epoch: of the lane's timeline.
        at: the point at which the current inner step began, or the stage's present point.
        todo: passes of this step that have not begun, in order.
        running: the pass that is being computed.
        there: passes of this point and the next whose input is here.
        counted: inner steps of this round whose tokens count.
    """

    config: LaneConfig
    stage: int
    epoch: int
    at: Point
    phase: Phase
    todo: tuple[Pass, ...] = ()
    running: Pass | None = None
    there: frozenset[tuple[Point, Pass]] = frozenset()
    counted: int = 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self.config.num_stages - 1


@dataclass(frozen=True, slots=True)
class StageTransition:
    """The state after an event, the orders, and why an event was ignored."""

    state: StageState
    orders: tuple[Order, ...] = ()
    remark: str = ""


def begin(config: LaneConfig, stage: int, at: Point, *, epoch: int = 0) -> StageTransition:
    """A stage that has the run's parameters at this point. Its first order is a snapshot.

    Raises:
        LocalProtocolError: the lane has no such stage.
    """
    if not 0 <= stage < config.num_stages:
        raise LocalProtocolError(f"stage {stage}", f"0 to {config.num_stages - 1}")
    state = StageState(config, stage, epoch, at, "copying")
    return StageTransition(state, (TakeSnapshot(epoch, at, "the lane begins"),))


def join(config: LaneConfig, stage: int, back: WentBack) -> StageTransition:
    """A spare replaces a lost member, from the point that the lane goes back to."""
    return step(begin(config, stage, back.at, epoch=back.epoch - 1).state, back)


def step(state: StageState, event: Event) -> StageTransition:
    """Handle one event."""
    if isinstance(event, WentBack):
        return _went_back(state, event)
    if isinstance(event, LaneDissolved) or state.phase == "over":
        return StageTransition(replace(state, phase="over", todo=(), running=None, there=frozenset()))
    if event.epoch != state.epoch:
        return StageTransition(
            state, remark=f"{type(event).__name__} of time line {event.epoch}, here it is {state.epoch}"
        )
    match event:
        case Arrived():
            return _arrived(state, event)
        case PassDone():
            return _pass_done(state, event)
        case StepAgreed():
            return _agreed(state, event)
        case StepTaken():
            return _step_taken(state, event)
        case SnapshotTaken():
            return _snapshot_held(state, event)
        case SnapshotWhole():
            return _snapshot_whole(state, event)
        case SnapshotLoaded():
            return _unless(state, "loading") or StageTransition(replace(state, phase="loaded"))
        case Resumed():
            return _unless(state, "loaded") or _next_step(state)
        case Adopted():
            return _adopted(state, event)


def _unless(state: StageState, phase: Phase) -> StageTransition | None:
    return None if state.phase == phase else StageTransition(state, remark=f"nobody waits for that while {state.phase}")


def _went_back(state: StageState, event: WentBack) -> StageTransition:
    if event.epoch <= state.epoch or state.phase == "over":
        return StageTransition(
            state, remark=f"going back in time line {event.epoch}, here it is {state.epoch}, {state.phase}"
        )
    moved = replace(
        state,
        epoch=event.epoch,
        at=event.at,
        counted=event.counted,
        phase="loading",
        todo=(),
        running=None,
        there=frozenset(),
    )
    return StageTransition(moved, (LoadSnapshot(event.epoch, event.at, "a member of the lane was replaced"),))


def _arrived(state: StageState, event: Arrived) -> StageTransition:
    ahead = Point(state.at.round, state.at.step + 1)
    is_next_round = event.at == Point(state.at.round + 1, 0)
    if event.at not in (state.at, ahead) and not is_next_round:
        return StageTransition(state, remark=f"work of {event.at}, here it is {state.at}")
    needs_input = not state.is_last if event.work.is_backward else state.stage > 0
    is_measured = event.at.step == 0 and not event.work.is_backward
    most = state.config.num_micro_batches + (state.config.heldout_passes if is_measured else 0)
    if not needs_input or not 0 <= event.work.number < most:
        return StageTransition(state, remark=f"{event.work} comes from nobody")
    if (event.at, event.work) in state.there:
        return StageTransition(state, remark=f"{event.work} once more")
    is_over = (
        event.at == state.at and state.phase in ("passing", "agreeing", "stepping") and event.work not in state.todo
    )
    if is_over:
        return StageTransition(state, remark=f"{event.work} was done already")
    return _work(replace(state, there=state.there | {(event.at, event.work)}))


def _work(state: StageState) -> StageTransition:
    """Begin the next pass in order if its input is here, or report that all are done."""
    if state.phase != "passing" or state.running is not None:
        return StageTransition(state)
    if not state.todo:
        report = TellSquare(state.epoch, state.at, "all passes of the step are done")
        return StageTransition(replace(state, phase="agreeing"), (report,))
    work = state.todo[0]
    is_own = state.is_last if work.is_backward else state.stage == 0
    if not is_own and (state.at, work) not in state.there:
        return StageTransition(state)
    moved = replace(state, todo=state.todo[1:], running=work, there=state.there - {(state.at, work)})
    return StageTransition(moved, (RunPass(state.at, work, "next in order"),))


def _pass_done(state: StageState, event: PassDone) -> StageTransition:
    if (event.at, event.work) != (state.at, state.running):
        return StageTransition(state, remark=f"{event.work} was not running")
    return _work(replace(state, running=None))


def _agreed(state: StageState, event: StepAgreed) -> StageTransition:
    if event.at != state.at or state.phase != "agreeing":
        return StageTransition(state, remark=f"a step at {event.at} was agreed, here it is {state.at}, {state.phase}")
    return StageTransition(
        replace(state, phase="stepping"), (TakeStep(state.at, event.whole_square, "all stages are done with it"),)
    )


def _step_taken(state: StageState, event: StepTaken) -> StageTransition:
    if event.at != state.at or state.phase != "stepping":
        return StageTransition(state, remark=f"a step at {event.at} was taken, here it is {state.at}, {state.phase}")
    at, config = Point(state.at.round, state.at.step + 1), state.config
    moved = replace(state, at=at, counted=state.counted + event.counts)
    if at.step == config.inner_steps:
        return _copy(moved, "the round's inner steps are done")
    if at.step % config.snapshot_steps == 0:
        return _copy(moved, f"every {config.snapshot_steps} inner steps")
    return _next_step(moved)


def _copy(state: StageState, reason: str) -> StageTransition:
    return StageTransition(replace(state, phase="copying"), (TakeSnapshot(state.epoch, state.at, reason),))


def _snapshot_held(state: StageState, event: SnapshotTaken) -> StageTransition:
    if event.at != state.at or state.phase != "copying":
        return StageTransition(state, remark=f"a snapshot of {event.at}, here it is {state.at}, {state.phase}")
    if state.at.step >= state.config.inner_steps:
        return StageTransition(replace(state, phase="ending"))
    return _next_step(state)


def _snapshot_whole(state: StageState, event: SnapshotWhole) -> StageTransition:
    if event.at != state.at or state.phase != "ending":
        return StageTransition(state, remark=f"every stage holds {event.at}, here it is {state.at}, {state.phase}")
    return _next_step(state)


def _next_step(state: StageState) -> StageTransition:
    """The next inner step, or the averaging if none is left."""
    config = state.config
    if state.at.step >= config.inner_steps:
        tokens = state.counted * config.step_tokens
        contribute = Contribute(state.at.round, tokens, "the round's inner steps are done")
        return StageTransition(replace(state, phase="averaging"), (contribute,))
    order = passes(config.schedule, state.stage, config.num_stages, config.num_micro_batches)
    if state.at.step == 0:
        measured = range(config.num_micro_batches, config.num_micro_batches + config.heldout_passes)
        order = (
            *order,
            *(Pass(number, False) for number in measured),
        )  # last, so that a lane that goes back trains at once
    return _work(replace(state, phase="passing", todo=order, running=None))


def _adopted(state: StageState, event: Adopted) -> StageTransition:
    if event.round != state.at.round or state.phase != "averaging":
        return StageTransition(state, remark=f"round {event.round} was adopted, here it is {state.at}, {state.phase}")
    return _copy(replace(state, at=Point(event.round + 1, 0), counted=0), "a round begins")
