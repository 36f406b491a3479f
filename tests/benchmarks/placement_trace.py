"""Servers that come and go, stages that they serve, and who moves: a seeded trace, without a network and without a clock.

Three rules: nobody ever moves; Petals' own, as its description and its released code have it (2209.01188, section 3.2); and ours.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.ids import PeerId
from protocol.pipeline.placement.placement import Placement, Server, next_move, stage_for_joiner

PETALS_QUALITY: Final = 0.75
PETALS_PERIOD_S: Final = 120.0
EPSILON: Final = 1e-3


@dataclass(frozen=True)
class Trace:
    """Attributes: mean times in seconds, exponential; every server's speed is 1."""

    num_servers: int
    num_stages: int
    up_s: float
    down_s: float
    hours: float
    seed: int
    state_bytes: int = 1_000_000_000
    download_bytes_per_s: float = 12.5e6
    warm_up_s: float = 20.0
    horizon_s: float = 900.0

    def events(self) -> list[tuple[float, int, bool]]:
        """(when, server, whether it comes)."""
        draw, found = random.Random(self.seed), []
        for server in range(self.num_servers):
            is_up, at_s = draw.random() < self.up_s / (self.up_s + self.down_s), 0.0
            found += [(0.0, server, True)] if is_up else []
            while at_s < self.hours * 3600:
                at_s += draw.expovariate(1.0 / (self.up_s if is_up else self.down_s))
                is_up = not is_up
                found.append((at_s, server, is_up))
        return sorted(event for event in found if event[0] < self.hours * 3600)


@dataclass
class Outcome:
    """Attributes: shares of the best that is possible with the servers there, bytes of moves, and moves to a stage held already."""

    optimum: float = 0.0
    done: float = 0.0
    moved_bytes: int = 0
    moves: int = 0
    alone_s: float = 0.0

    @property
    def share(self) -> float:
        return self.done / self.optimum


Rule = Callable[["Simulation", float], None]


@dataclass
class Simulation:
    """Attributes: `loading` says until when a mover loads, and which stage it goes on serving meanwhile, None for none."""

    trace: Trace
    rule: Rule
    servers: dict[int, Server] = field(default_factory=dict)
    loading: dict[int, tuple[float, int | None]] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def run(self) -> Outcome:
        events, now_s, tick_s = self.trace.events(), 0.0, 0.0
        end_s = self.trace.hours * 3600
        while now_s < end_s:
            next_s = min([end_s, tick_s] + [until for until, _ in self.loading.values()] + [e[0] for e in events[:1]])
            self._pass(next_s - now_s)
            now_s = next_s
            for server in [server for server, (until, _) in self.loading.items() if until <= now_s]:
                del self.loading[server]
            while events and events[0][0] <= now_s:
                _, server, comes = events.pop(0)
                self._come_or_go(server, comes)
            if now_s >= tick_s:
                self.rule(self, now_s)
                tick_s = now_s + 30.0
        return self.outcome

    def placement(self) -> Placement:
        trace = self.trace
        moving = (replace(server, is_moving=key in self.loading) for key, server in sorted(self.servers.items()))
        bytes_ = (trace.state_bytes,) * trace.num_stages
        return Placement((1.0,) * trace.num_stages, bytes_, tuple(moving), trace.warm_up_s, trace.horizon_s)

    def move(self, server: int, stage: int, now_s: float, *, serves_on: bool) -> None:
        trace, before = self.trace, self.servers[server].stage
        self.servers[server] = replace(self.servers[server], stage=stage)
        takes_s = trace.state_bytes / trace.download_bytes_per_s + trace.warm_up_s
        self.loading[server] = (now_s + takes_s, before if serves_on else None)
        self.outcome.moved_bytes += trace.state_bytes
        self.outcome.moves += 1

    def _come_or_go(self, server: int, comes: bool) -> None:
        self.loading.pop(server, None)
        if not comes:
            self.servers.pop(server, None)
            return
        everywhere = frozenset(range(self.trace.num_stages))
        stage = stage_for_joiner(self.placement(), everywhere)
        name = PeerId(f"{server:04d}")
        self.servers[server] = Server(name, stage, 1.0, self.trace.download_bytes_per_s, everywhere)

    def _pass(self, seconds: float) -> None:
        counts = [0] * self.trace.num_stages
        for key, server in self.servers.items():
            stage = self.loading[key][1] if key in self.loading else server.stage
            if stage is not None:
                counts[stage] += 1
        self.outcome.done += min(counts) * seconds
        self.outcome.optimum += len(self.servers) // self.trace.num_stages * seconds
        self.outcome.alone_s += seconds if min(counts) < 2 else 0.0


def nobody_moves(simulation: Simulation, now_s: float) -> None:
    """The stage that a server joined is its own for good."""


def ours(simulation: Simulation, now_s: float) -> None:
    """Moves one after another, as long as one is worth it."""
    for _ in range(simulation.trace.num_servers):
        order = next_move(simulation.placement())
        if order is None:
            return
        simulation.move(int(order.peer), order.stage, now_s, serves_on=True)


def petals(simulation: Simulation, now_s: float) -> None:
    """Each server looks by itself, once in two minutes on average; who moves serves nothing until it has loaded."""
    for server in sorted(simulation.servers):
        if server in simulation.loading or simulation.draw.random() >= 30.0 / PETALS_PERIOD_S:
            continue
        stages = {key: other.stage for key, other in simulation.servers.items()}
        stage = petals_choice(stages, server, simulation.trace.num_stages, simulation.draw)
        if stage is not None:
            simulation.move(server, stage, now_s, serves_on=False)


def petals_choice(stages: dict[int, int], server: int, num_stages: int, draw: random.Random) -> int | None:
    """The new place of a server, None if it stays: it plays through everybody's greedy moves, and goes when the swarm is less than
    three quarters as fast as it comes out there. A server never leaves a stage that would have nobody.
    """
    rates = [0.0] * num_stages
    for stage in stages.values():
        rates[stage] += 1.0
    before, planned = min(rates), dict(stages)
    rates[stages[server]] -= 1.0 + EPSILON
    if before > EPSILON and min(rates) <= 0.0:
        return None
    target = rates.index(min(rates))
    if target == stages[server]:
        return None
    rates[stages[server]] += EPSILON
    rates[target] += 1.0
    planned[server], is_moved = target, True
    while is_moved:
        is_moved = False
        for other in draw.sample(sorted(planned), len(planned)):
            rates[planned[other]] -= 1.0 + EPSILON
            best = rates.index(min(rates))
            rates[planned[other]] += EPSILON
            is_moved = is_moved or best != planned[other]
            planned[other] = best
            rates[best] += 1.0
    after = min(rates)
    if after < before or after < EPSILON:
        return None
    return target if before / after < PETALS_QUALITY - EPSILON else None
