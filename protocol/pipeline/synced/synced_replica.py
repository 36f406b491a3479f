"""What a replica does with the work of one synced step: each backward pass is added to its sum once, when it is granted, or never.

Replies may be lost and orders come twice or late. A backward pass that was computed waits apart until the owner grants it; asked once
more, the replica answers with what it has. The sum that it brings to the others is over exactly those that the owner names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.frozen import replace
from protocol.pipeline.synced_routing import Work


@dataclass(frozen=True, slots=True)
class Asked:
    """Work came, with the bytes that it needs."""

    weights: int
    work: Work


@dataclass(frozen=True, slots=True)
class Computed:
    """It is done; the gradients of a backward pass lie apart."""

    weights: int
    work: Work


@dataclass(frozen=True, slots=True)
class Granted:
    """The owner counts our backward pass of this micro-batch."""

    weights: int
    number: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The owner counts somebody else's backward pass of this micro-batch, or nobody's."""

    weights: int
    number: int


@dataclass(frozen=True, slots=True)
class ToldToStartAgain:
    """Nothing of this step that is here counts."""

    weights: int


@dataclass(frozen=True, slots=True)
class ToldToSum:
    """The owner wants our sum over these micro-batches."""

    weights: int
    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Committed:
    """The step was taken: other weights are here, and nothing of it is kept."""

    weights: int


Event = Asked | Computed | Granted | Dropped | ToldToStartAgain | ToldToSum | Committed


@dataclass(frozen=True, slots=True)
class Compute:
    """Do it from the bytes that came; answer Computed."""

    work: Work


@dataclass(frozen=True, slots=True)
class Reply:
    """Send what came of this work, perhaps once more."""

    work: Work


@dataclass(frozen=True, slots=True)
class Decline:
    """Say that this work is not done here, and why."""

    work: Work
    reason: str


@dataclass(frozen=True, slots=True)
class Fold:
    """Add the micro-batch's gradients, which lie apart, to the sum."""

    number: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the micro-batch's gradients, which lie apart."""

    number: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the sum and all gradients that lie apart."""


@dataclass(frozen=True, slots=True)
class DeliverSum:
    """Bring the sum over these micro-batches to the other replicas of the stage, and tell the owner."""

    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class RefuseSum:
    """Tell the owner that the sum here is over others: it begins again, and the owner has the rest done elsewhere."""

    reason: str


Order = Compute | Reply | Decline | Fold | Discard | Forget | DeliverSum | RefuseSum


@dataclass(frozen=True)
class ReplicaState:
    """What a replica knows of the step.

    Attributes:
        weights: version that it holds; work and words of another one are refused.
        running: work under way.
        apart: micro-batches whose backward pass is done and not granted.
        summed: micro-batches in the sum.
        most_apart: gradients that may lie apart, at most.
    """

    stage: int
    weights: int
    most_apart: int = 8
    running: frozenset[Work] = frozenset()
    apart: frozenset[int] = frozenset()
    summed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Step:
    """The state after an event, what is ordered, and why an event was passed over."""

    state: ReplicaState
    orders: tuple[Order, ...] = ()
    remark: str = field(default="")


def step(state: ReplicaState, event: Event) -> Step:
    """Take one event."""
    if isinstance(event, Committed):
        if event.weights <= state.weights:
            return Step(state, remark=f"weights {event.weights} are here already")
        moved = ReplicaState(state.stage, event.weights, state.most_apart)
        return Step(moved, (Forget(),))
    if event.weights != state.weights:
        reason = f"weights {event.weights}, and {state.weights} are here"
        orders = (Decline(event.work, reason),) if isinstance(event, Asked) else ()
        return Step(state, orders, reason)
    match event:
        case Asked():
            return _asked(state, event.work)
        case Computed():
            return _computed(state, event.work)
        case Granted():
            return _granted(state, event.number)
        case Dropped():
            return _dropped(state, event.number)
        case ToldToStartAgain():
            return Step(_emptied(state), (Forget(),))
        case ToldToSum():
            return _told_to_sum(state, event.numbers)


def not_done(state: ReplicaState, work: Work) -> ReplicaState:
    """The state where work that was begun came to nothing, because what it was to be done with was refused."""
    return replace(state, running=state.running - {work})


def _emptied(state: ReplicaState) -> ReplicaState:
    return replace(state, running=frozenset(), apart=frozenset(), summed=frozenset())


def _asked(state: ReplicaState, work: Work) -> Step:
    if work.stage != state.stage:
        return Step(state, (Decline(work, f"stage {state.stage} is here"),))
    if work in state.running:
        return Step(state, remark=f"{work} is under way")
    if work.is_backward and work.number in state.apart | state.summed:
        return Step(state, (Reply(work),))
    if work.is_backward and len(state.apart) >= state.most_apart:
        return Step(state, (Decline(work, f"{len(state.apart)} gradients wait to be granted"),))
    return Step(replace(state, running=state.running | {work}), (Compute(work),))


def _computed(state: ReplicaState, work: Work) -> Step:
    if work not in state.running:
        return Step(state, remark=f"{work} was forgotten meanwhile")
    running = state.running - {work}
    apart = state.apart | {work.number} if work.is_backward else state.apart
    return Step(replace(state, running=running, apart=apart), (Reply(work),))


def _granted(state: ReplicaState, number: int) -> Step:
    if number not in state.apart:
        return Step(state, remark=f"micro-batch {number} is summed already, or was never done here")
    return Step(replace(state, apart=state.apart - {number}, summed=state.summed | {number}), (Fold(number),))


def _dropped(state: ReplicaState, number: int) -> Step:
    if number not in state.apart:
        return Step(state, remark=f"micro-batch {number} does not lie apart")
    return Step(replace(state, apart=state.apart - {number}), (Discard(number),))


def _told_to_sum(state: ReplicaState, numbers: frozenset[int]) -> Step:
    """A grant that was lost is made up for; a sum over anything else is refused."""
    surplus, lacking = state.summed - numbers, numbers - state.summed - state.apart
    if surplus or lacking:
        reason = f"{sorted(surplus)} are too many in the sum here, {sorted(lacking)} are not"
        return Step(_emptied(state), (Forget(), RefuseSum(reason)))
    late = sorted(numbers - state.summed)
    moved = replace(state, apart=state.apart - numbers, summed=numbers)
    return Step(moved, (*(Fold(number) for number in late), DeliverSum(numbers)))
