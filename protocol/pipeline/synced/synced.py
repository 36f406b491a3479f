"""One step of a synced pipeline, as its owner decides it: every micro-batch counts exactly once at every stage, or at none.

Any replica of a stage may do any micro-batch's work: replicas hold equal weights within a step. The owner holds the wire bytes of each
stage's input and of each gradient until the step is committed, so whatever is lost is done again from them, at that stage alone. A
backward pass counts when the owner grants it, to one replica; what nobody was granted is dropped. At the end every replica names the
micro-batches in its sum, and a sum that holds others than the owner granted does not count. A micro-batch that cannot be computed is
removed at all stages: whoever had summed it begins its sum again.

The last stage goes forward and backward at once: its forward pass gives a loss that nobody needs before.

Micro-batches of held-out text, whose numbers come after those of the step, go forward alone, the last stage too, where there is time
for them; the step ends after they are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from types import MappingProxyType
from typing import Literal

from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.pipeline.synced_routing import Replica, SyncedConfig, Work, chosen, patience_s, rest_s

Phase = Literal["working", "summing", "over"]


@dataclass(frozen=True, slots=True)
class ReplicaJoined:
    """It holds the weights of this step, and nothing of the step itself; `work_s` is what it has shown in earlier ones."""

    peer: PeerId
    stage: int
    work_s: float | None = None


@dataclass(frozen=True, slots=True)
class AllJoined:
    """The replicas that a step begins with: none of its work is given out before all of them are known."""

    replicas: tuple[ReplicaJoined, ...]


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """Refused, reset or silent."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply whose bytes were checked and are held here; `nats` of held-out text, where the last stage has measured it."""

    peer: PeerId
    work: Work
    nats: float = 0.0


@dataclass(frozen=True, slots=True)
class Declined:
    """The replica has too much to do, or does not have what was asked for: no work was done, and nobody is to blame."""

    peer: PeerId
    work: Work


@dataclass(frozen=True, slots=True)
class Spoilt:
    """What came of it is not finite: the micro-batch itself is bad."""

    number: int


@dataclass(frozen=True, slots=True)
class SumDelivered:
    """The replica's sum over these micro-batches is with every living replica of its stage."""

    peer: PeerId
    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Held:
    """Whether the step's end waits for somebody: who loads the weights of this step must have them before they move on."""

    is_held: bool


Event = ReplicaJoined | AllJoined | ReplicaLost | Finished | Declined | Spoilt | SumDelivered | Ticked | Held


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the replica the bytes that this work needs."""

    peer: PeerId
    work: Work
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell the replica that its backward pass of this micro-batch counts: it adds it to its sum."""

    peer: PeerId
    number: int
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Drop:
    """Tell the replica that its backward pass of this micro-batch does not count."""

    peer: PeerId
    number: int
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Tell the replica to forget its sum and all that it keeps of this step."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Tell the replica to bring its sum over exactly these micro-batches to the others of its stage; answer SumDelivered, or, where it
    has others, ReplicaLost and ReplicaJoined.
    """

    peer: PeerId
    numbers: frozenset[int]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """The step is decided: every stage adds up these sums, by peer, and takes its step; together they are over `counted`."""

    sums: tuple[tuple[int, tuple[tuple[PeerId, frozenset[int]], ...]], ...]
    counted: frozenset[int]
    removed: frozenset[int]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Measured:
    """All held-out text is measured: the mean; None where something of it is not finite."""

    nats: float | None
    reason: str = field(default="", compare=False)


Order = Ask | Grant | Drop | StartAgain | Sum | Commit | Measured


@dataclass(frozen=True)
class SyncedState:
    """What the owner of a step knows.

    Attributes:
        seed: by which replicas that are as good as each other are told apart.
        done: work whose bytes are held: outputs of forward passes, input gradients of backward ones.
        granted: whose backward pass counts, by micro-batch and stage.
        removed: micro-batches that count at no stage.
        met: who was a replica of this step at any time.
        declined: who has declined what since the last tick.
        sum_since_s: when sums were asked for last, monotonic.
        is_held: no sums are asked for yet.
        num_heldout: micro-batches of held-out text that this step measures.
        measured: what came of those, by their numbers; not a number where it was spoilt.
    """

    config: SyncedConfig
    seed: int
    replicas: Mapping[PeerId, Replica] = field(default_factory=lambda: MappingProxyType({}))
    done: frozenset[Work] = frozenset()
    granted: Mapping[tuple[int, int], PeerId] = field(default_factory=lambda: MappingProxyType({}))
    removed: frozenset[int] = frozenset()
    phase: Phase = "working"
    met: frozenset[PeerId] = frozenset()
    declined: frozenset[tuple[PeerId, Work]] = frozenset()
    sum_since_s: float = 0.0
    is_held: bool = False
    num_heldout: int = 0
    measured: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """Micro-batches of held-out text that are still to be measured."""
        first = self.config.num_micro_batches
        return tuple(number for number in range(first, first + self.num_heldout) if number not in self.measured)

    @property
    def counted(self) -> frozenset[int]:
        """Micro-batches that are to count."""
        return frozenset(range(self.config.num_micro_batches)) - self.removed

    def granted_to(self, peer: PeerId) -> frozenset[int]:
        """Micro-batches that count at this replica."""
        return frozenset(number for (number, _), whose in self.granted.items() if whose == peer)


@dataclass(frozen=True, slots=True)
class Step:
    """The state after an event, what is ordered, why an event was passed over, and what is waited for."""

    state: SyncedState
    orders: tuple[Order, ...] = ()
    remark: str = ""
    waiting: str = ""


def step(state: SyncedState, event: Event, now_s: float) -> Step:
    """Take one event."""
    if state.phase == "over":
        return Step(state, remark="the step is committed")
    match event:
        case ReplicaJoined():
            done = _joined(state, event)
        case AllJoined():
            done = _all_joined(state, event)
        case ReplicaLost():
            done = _lost(state, event)
        case Finished():
            done = _finished(state, event, now_s)
        case Declined():
            done = _unasked(state, event)
        case Spoilt():
            done = _spoilt(state, event)
        case SumDelivered():
            done = _sum_delivered(state, event)
        case Ticked():
            done = Step(replace(state, declined=frozenset()))
        case Held():
            done = Step(replace(state, is_held=event.is_held))
    after = _directed(done.state, now_s)
    return Step(after.state, done.orders + after.orders, done.remark, after.waiting)


def _joined(state: SyncedState, event: ReplicaJoined) -> Step:
    if not 0 <= event.stage < state.config.num_stages:
        return Step(state, remark=f"{short(event.peer)} has stage {event.stage}, of {state.config.num_stages}")
    state = _without(state, event.peer)
    # it has none of the sums that the others of its stage have told of: these are brought to it, too
    replicas = {
        peer: replace(one, summed=frozenset()) if one.stage == event.stage else one
        for peer, one in state.replicas.items()
    }
    replicas[event.peer] = Replica(event.peer, event.stage, work_s=event.work_s)
    again = (StartAgain(event.peer, "what it had summed before counts no more"),) if event.peer in state.met else ()
    return Step(replace(state, replicas=MappingProxyType(replicas), met=state.met | {event.peer}), again)


def _all_joined(state: SyncedState, event: AllJoined) -> Step:
    orders, remarks = list[Order](), list[str]()
    for joined in event.replicas:
        done = _joined(state, joined)
        state, orders = done.state, [*orders, *done.orders]
        remarks += [done.remark] if done.remark else []
    return Step(state, tuple(orders), "; ".join(remarks))


def _lost(state: SyncedState, event: ReplicaLost) -> Step:
    """All that it was granted is done again, at its stage alone."""
    replica = state.replicas.get(event.peer)
    if replica is None:
        return Step(state, remark=f"{short(event.peer)} is no replica of this step")
    return Step(_without(state, event.peer))


def _without(state: SyncedState, peer: PeerId) -> SyncedState:
    granted = {piece: whose for piece, whose in state.granted.items() if whose != peer}
    replicas = {name: replica for name, replica in state.replicas.items() if name != peer}
    return replace(state, replicas=MappingProxyType(replicas), granted=MappingProxyType(granted), phase="working")


def _finished(state: SyncedState, event: Finished, now_s: float) -> Step:
    replica, work = state.replicas.get(event.peer), event.work
    if replica is None or replica.stage != work.stage:
        return Step(state, remark=f"{short(event.peer)} is no replica of stage {work.stage}")
    since_s = replica.asked.get(work)
    if since_s is not None:
        took_s = now_s - max(since_s, replica.free_s)
        mean_s = took_s if replica.work_s is None else 0.8 * replica.work_s + 0.2 * took_s
        state = _with(state, replace(replica, work_s=mean_s, free_s=now_s))
    if not is_due(state, work):
        is_ours = state.granted.get((work.number, work.stage)) == event.peer
        drop = (
            (Drop(event.peer, work.number, "it counts elsewhere, or nowhere"),)
            if work.is_backward and not is_ours
            else ()
        )
        return Step(_cleared(state, work, event.peer), drop, f"{work} is done already, or nobody asked for it")
    state = replace(_cleared(state, work, None), done=state.done | {work})
    if work.number in state.unmeasured and work.stage == state.config.num_stages - 1:
        return _measured(state, work.number, event.nats)
    if not work.is_backward:
        return Step(state)
    granted = MappingProxyType({**state.granted, (work.number, work.stage): event.peer})
    grant = Grant(event.peer, work.number, "its backward pass is the first that came")
    return Step(replace(state, granted=granted), (grant,))


def _measured(state: SyncedState, number: int, nats: float) -> Step:
    state = replace(state, measured=MappingProxyType({**state.measured, number: nats}))
    if state.unmeasured:
        return Step(state)
    mean = sum(state.measured[number] for number in sorted(state.measured)) / state.num_heldout
    return Step(state, (Measured(mean if isfinite(mean) else None, "all held-out text went through"),))


def _with(state: SyncedState, replica: Replica) -> SyncedState:
    return replace(state, replicas=MappingProxyType({**state.replicas, replica.peer: replica}))


def _cleared(state: SyncedState, work: Work, peer: PeerId | None) -> SyncedState:
    """The work is off a replica's list, or with None off everybody's."""
    for replica in state.replicas.values():
        if work in replica.asked and peer in (None, replica.peer):
            asked = {other: since_s for other, since_s in replica.asked.items() if other != work}
            state = _with(state, replace(replica, asked=MappingProxyType(asked)))
    return state


def _unasked(state: SyncedState, event: Declined) -> Step:
    declined = state.declined | {(event.peer, event.work)}
    return Step(replace(_cleared(state, event.work, event.peer), declined=declined))


def _spoilt(state: SyncedState, event: Spoilt) -> Step:
    if event.number in state.unmeasured:
        for stage in range(state.config.num_stages):
            state = _cleared(state, Work(event.number, stage, False), None)
        return _measured(state, event.number, nan)
    if event.number not in state.counted:
        return Step(state, remark=f"micro-batch {event.number} is removed already, or none of this step")
    holders = [peer for (number, _), peer in state.granted.items() if number == event.number]
    granted = {piece: peer for piece, peer in state.granted.items() if peer not in holders}
    state = replace(state, removed=state.removed | {event.number}, granted=MappingProxyType(granted))
    for work in [work for replica in state.replicas.values() for work in replica.asked if work.number == event.number]:
        state = _cleared(state, work, None)
    for peer in holders:
        state = _with(state, replace(state.replicas[peer], summed=frozenset()))
    reason = f"micro-batch {event.number} is removed at all stages, and was in its sum"
    return Step(replace(state, phase="working"), tuple(StartAgain(peer, reason) for peer in dict.fromkeys(holders)))


def _sum_delivered(state: SyncedState, event: SumDelivered) -> Step:
    replica = state.replicas.get(event.peer)
    if replica is None or event.numbers != state.granted_to(event.peer):
        return Step(
            state, remark=f"a sum of {short(event.peer)} over {sorted(event.numbers)}, which it was not granted"
        )
    return Step(_with(state, replace(replica, summed=event.numbers)))


def _directed(state: SyncedState, now_s: float) -> Step:
    """What is to be done next: work, sums, or the commit."""
    wanted = {(number, stage) for number in state.counted for stage in range(state.config.num_stages)}
    if wanted != set(state.granted) or state.unmeasured:
        return _asked(replace(state, phase="working"), now_s)
    if state.is_held:
        return Step(state, waiting="somebody loads the weights of this step")
    holders = [state.replicas[peer] for peer in dict.fromkeys(state.granted.values())]
    missing = [replica for replica in holders if replica.summed != state.granted_to(replica.peer)]
    if not missing:
        return _committed(state)
    waiting = f"sums of {', '.join(short(replica.peer) for replica in missing)}"
    if state.phase == "summing" and now_s - state.sum_since_s < state.config.first_guess_s:
        return Step(state, waiting=waiting)
    orders = tuple(Sum(r.peer, state.granted_to(r.peer), "every micro-batch is granted everywhere") for r in missing)
    return Step(replace(state, phase="summing", sum_since_s=now_s), orders, waiting=waiting)


def _committed(state: SyncedState) -> Step:
    sums = []
    for stage in range(state.config.num_stages):
        peers = sorted({peer for (_, place), peer in state.granted.items() if place == stage})
        sums.append((stage, tuple((peer, state.granted_to(peer)) for peer in peers)))
    order = Commit(tuple(sums), state.counted, state.removed, "every sum is with all who need it")
    return Step(replace(state, phase="over"), (order,))


def is_due(state: SyncedState, work: Work) -> bool:
    """Whether what the work needs is held, and it does not count yet: what comes of other work changes nothing."""
    config = state.config
    is_over = (work.number, work.stage) in state.granted if work.is_backward else work in state.done
    if is_over or not 0 <= work.stage < config.num_stages:
        return False
    is_last = work.stage == config.num_stages - 1
    has_input = work.stage == 0 or Work(work.number, work.stage - 1, False) in state.done
    if work.number in state.unmeasured:
        return has_input and not work.is_backward
    if work.number not in state.counted:
        return False
    if not work.is_backward:
        return has_input and not is_last
    return has_input and (is_last or Work(work.number, work.stage + 1, True) in state.done)


def _due(state: SyncedState) -> Iterator[Work]:
    """Work that can be asked for, backward before forward, lower numbers first and held-out text last; no more micro-batches than may
    be under way, of each of the two.
    """
    config = state.config
    finished = [number for number in sorted(state.counted) if Work(number, 0, True) in state.done]
    begun = [number for number in sorted(state.counted) if Work(number, 0, True) not in state.done]
    for is_backward in (True, False):
        for number in (*finished, *begun[: config.in_flight], *state.unmeasured[: config.in_flight]):
            for stage in range(config.num_stages):
                work = Work(number, stage, is_backward)
                if is_due(state, work):
                    yield work


def _asked(state: SyncedState, now_s: float) -> Step:
    orders: list[Order] = []
    stuck: set[int] = set()
    rests_s = _rests_s(state)
    for work in list(_due(state)):
        having = [replica for replica in state.replicas.values() if work in replica.asked]
        late = [replica for replica in having if now_s - replica.asked[work] > patience_s(state.config, replica)]
        if having and len(late) < len(having):
            continue
        of_stage = [replica for replica in state.replicas.values() if replica.stage == work.stage]
        taking = [replica for replica in of_stage if (replica.peer, work) not in state.declined]
        by = chosen(state.config, taking, late, rests_s[work.stage], f"{state.seed} {work}")
        if by is None:
            stuck |= set() if of_stage else {work.stage}
            continue
        state = _with(state, replace(by, asked=MappingProxyType({**by.asked, work: now_s}), was_asked=True))
        orders.append(Ask(by.peer, work, "late elsewhere" if late else "it can be done first there"))
    waiting = f"nobody has stages {sorted(stuck)}" if stuck else ""
    return Step(state, tuple(orders), waiting=waiting)


def _rests_s(state: SyncedState) -> dict[int, float]:
    """Of each stage, in what time all that is left to do there is done."""
    config, found = state.config, {}
    for stage in range(config.num_stages):
        left = sum((number, stage) not in state.granted for number in state.counted) + len(state.unmeasured)
        if stage < config.num_stages - 1:
            left += sum(Work(number, stage, False) not in state.done for number in state.counted)
        found[stage] = rest_s(config, [r for r in state.replicas.values() if r.stage == stage], left)
    return found
