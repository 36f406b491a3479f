"""Synced steps of an owner and its replicas in virtual time, with faults drawn from a seed; what replicas compute is a hook."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from protocol.ids import PeerId
from protocol.pipeline.synced import synced, synced_replica
from protocol.pipeline.synced.synced import SyncedState
from protocol.pipeline.synced.synced_replica import ReplicaState
from protocol.pipeline.synced_routing import SyncedConfig, Work


@dataclass(frozen=True)
class Faults:
    """Shares of messages, and of pieces of work after which something happens."""

    lost: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    killed: float = 0.0
    spoilt: float = 0.0


@dataclass
class SyncedWorld:
    """All of it. Where a replica is killed another process with nothing comes in its place, as the same peer, a little later.

    Attributes:
        sums: what each replica has added up since it last forgot.
        delivered: what it brought to the others.
    """

    config: SyncedConfig
    replicas_a_stage: int
    faults: Faults
    seed: int
    speeds: tuple[float, ...] = (1.0,)
    steps: int = 1
    num_heldout: int = 0
    measured: list[float | None] = field(default_factory=list)
    weights: int = 0
    now_s: float = 0.0
    num_killed: int = 0
    num_done: Counter[PeerId] = field(default_factory=Counter)
    commits: list[synced.Commit] = field(default_factory=list)
    replicas: dict[PeerId, ReplicaState] = field(default_factory=dict)
    sums: dict[PeerId, Counter[int]] = field(default_factory=dict)
    delivered: dict[tuple[PeerId, frozenset[int]], Counter[int]] = field(default_factory=dict)
    _busy_until_s: dict[PeerId, float] = field(default_factory=dict)
    _lives: Counter[PeerId] = field(default_factory=Counter)
    _heap: list[tuple[float, int, Any]] = field(default_factory=list)
    _order: Any = field(default_factory=count)
    _owner: SyncedState | None = None

    # --- hooks ---

    def compute(self, peer: PeerId, work: Work) -> None:
        """A piece of work is done at a replica."""

    def fold(self, peer: PeerId, number: int) -> None:
        self.sums[peer][number] += 1

    def forget(self, peer: PeerId) -> None:
        self.sums[peer] = Counter()

    def deliver(self, peer: PeerId, numbers: frozenset[int]) -> None:
        self.delivered[peer, numbers] = Counter(self.sums[peer])

    def received(self, peer: PeerId, work: Work) -> None:
        """The owner takes a reply."""

    def committed(self, order: synced.Commit) -> None:
        for stage, sums in order.sums:
            total: Counter[int] = Counter()
            for peer, numbers in sums:
                assert self.delivered[peer, numbers] == Counter(numbers), f"sum of {peer}"
                total += self.delivered[peer, numbers]
            assert total == Counter(order.counted), f"stage {stage} has {total}"

    # --- the world ---

    def run(self, until_s: float = 2000.0) -> None:
        self.draw = random.Random(self.seed)
        for stage in range(self.config.num_stages):
            for number in range(self.replicas_a_stage):
                self._start(PeerId(f"{stage}.{number}"), stage)
        self._begin_step()
        self._later(0.1, "tick")
        while len(self.commits) < self.steps:
            assert self._heap, "nothing more happens"
            self.now_s, _, what = heapq.heappop(self._heap)
            assert self.now_s < until_s, f"seed {self.seed} comes to no end: {self._owner}"
            self._happen(what)

    def _begin_step(self) -> None:
        self._owner = SyncedState(self.config, self.seed + self.weights, num_heldout=self.num_heldout)
        for peer, state in self.replicas.items():
            self._tell_owner(synced.ReplicaJoined(peer, state.stage))

    def _start(self, peer: PeerId, stage: int) -> None:
        self._lives[peer] += 1
        self.replicas[peer] = ReplicaState(stage, self.weights)
        self._busy_until_s.pop(peer, None)
        self.forget(peer)

    def _later(self, after_s: float, what: Any) -> None:
        heapq.heappush(self._heap, (self.now_s + after_s, next(self._order), what))

    def _send(self, what: Any) -> None:
        """A message either way: lost, late, or twice."""
        for _ in range(2 if self.draw.random() < self.faults.twice else 1):
            if self.draw.random() >= self.faults.lost:
                slow = self.draw.random() < self.faults.late
                self._later(self.draw.uniform(1.0, 9.0) if slow else self.draw.uniform(0.01, 0.05), what)

    def _happen(self, what: Any) -> None:
        match what:
            case "tick":
                self._tell_owner(synced.Ticked())
                self._later(0.1, "tick")
            case ("owner", weights, event):
                if weights == self.weights:
                    self._tell_owner(event)
            case ("replica", peer, event):
                self._tell_replica(peer, event)
            case ("computed", peer, life, weights, work):
                if self._lives[peer] == life and peer in self.replicas:
                    self._computed(peer, weights, work)
            case ("rejoin", peer, stage):
                self._start(peer, stage)
                self._tell_owner(synced.ReplicaJoined(peer, stage))

    def _computed(self, peer: PeerId, weights: int, work: Work) -> None:
        if self.draw.random() < self.faults.killed:
            stage = self.replicas.pop(peer).stage
            self._lives[peer] += 1
            self.num_killed += 1
            self._tell_owner(synced.ReplicaLost(peer))
            self._later(self.draw.uniform(0.1, 2.0), ("rejoin", peer, stage))
            return
        if work in self.replicas[peer].running:
            self.compute(peer, work)
        self.num_done[peer] += 1
        self._tell_replica(peer, synced_replica.Computed(weights, work))

    def _tell_owner(self, event: synced.Event) -> None:
        assert self._owner is not None
        if isinstance(event, synced.Finished):
            if event.peer in self.replicas:
                self.received(event.peer, event.work)
            if event.work.is_backward and event.work.stage and self.draw.random() < self.faults.spoilt:
                event = synced.Spoilt(event.work.number)
        done = synced.step(self._owner, event, self.now_s)
        self._owner = done.state
        for order in done.orders:
            self._perform(order)

    def _perform(self, order: synced.Order) -> None:
        weights = self.weights
        match order:
            case synced.Ask():
                self._send(("replica", order.peer, synced_replica.Asked(weights, order.work)))
            case synced.Grant():
                self._send(("replica", order.peer, synced_replica.Granted(weights, order.number)))
            case synced.Drop():
                self._send(("replica", order.peer, synced_replica.Dropped(weights, order.number)))
            case synced.StartAgain():
                self._send(("replica", order.peer, synced_replica.ToldToStartAgain(weights)))
            case synced.Sum():
                self._send(("replica", order.peer, synced_replica.ToldToSum(weights, order.numbers)))
            case synced.Measured():
                self.measured.append(order.nats)
            case synced.Commit():
                self.committed(order)
                self.commits.append(order)
                self.weights += 1
                self.delivered.clear()
                for peer in list(self.replicas):
                    self._tell_replica(peer, synced_replica.Committed(self.weights))
                self._begin_step()

    def _tell_replica(self, peer: PeerId, event: synced_replica.Event) -> None:
        if peer not in self.replicas:
            return
        done = synced_replica.step(self.replicas[peer], event)
        self.replicas[peer] = done.state
        for order in done.orders:
            self._obey(peer, order)

    def _obey(self, peer: PeerId, order: synced_replica.Order) -> None:
        weights = self.replicas[peer].weights
        match order:
            case synced_replica.Compute():
                speed = self.speeds[int(peer.split(".")[1]) % len(self.speeds)]
                begin_s = max(self.now_s, self._busy_until_s.get(peer, 0.0))
                self._busy_until_s[peer] = begin_s + 0.1 / speed
                self._later(
                    self._busy_until_s[peer] - self.now_s, ("computed", peer, self._lives[peer], weights, order.work)
                )
            case synced_replica.Reply():
                self._send(("owner", weights, synced.Finished(peer, order.work, float(order.work.number))))
            case synced_replica.Decline():
                self._send(("owner", weights, synced.Declined(peer, order.work)))
            case synced_replica.Fold():
                self.fold(peer, order.number)
            case synced_replica.Forget():
                self.forget(peer)
            case synced_replica.DeliverSum():
                self.deliver(peer, order.numbers)
                self._send(("owner", weights, synced.SumDelivered(peer, order.numbers)))
            case synced_replica.RefuseSum():
                stage = self.replicas[peer].stage
                self._later(0.02, ("owner", weights, synced.ReplicaLost(peer)))
                self._later(0.03, ("owner", weights, synced.ReplicaJoined(peer, stage)))
