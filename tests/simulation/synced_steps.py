"""python -m tests.simulation.synced_steps --seeds N --start S: synced steps of whole peers under faults that are drawn from a seed.

Peers are killed and come anew, freeze, are cut off from each other, are slow, break their streams; replies are dropped after the work
was done, or come twice; micro-batches are not finite. Always: each gradient is in a step once at every stage, or
the micro-batch was removed at all of them; replicas of a stage bring equal parameters into a round; and rounds go on.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
import trio
import trio.testing

from protocol.ids import PeerId
from protocol.pipeline.stage_machine import Point
from tests.peer.lane_world import NUM_STAGES, lane_config
from tests.peer.synced_swarm import SyncedSwarm, open_synced

CONFIG = lane_config(inner_steps=4, suspect_after_s=4.0)
ROUNDS = 3
WITHIN_S = 240.0
"""For all rounds, faults over the first half minute."""

FAULTS_S = 30.0
KINDS = ("kill", "freeze", "cut", "slow", "streams", "loss", "join")


@dataclass
class Story:
    """One seed's faults.

    Attributes:
        happened: each fault, in words.
    """

    world: SyncedSwarm
    draw: random.Random
    happened: list[str] = field(default_factory=list)
    num_joined: int = 0

    def begin(self) -> None:
        """Faults come in their own time."""
        if self.draw.random() < 0.4:
            places = [(Point(r, s), n) for r in range(ROUNDS) for s in range(CONFIG.inner_steps) for n in range(2)]
            self.world.spoilt = set(self.draw.sample(places, 3))
        for peer in self.world.services:
            self.world.pace_s[peer] = self.draw.uniform(0.05, 0.4)
        for _ in range(self.draw.randint(3, 8)):
            self.world.nursery.start_soon(self._one, self.draw.choice(KINDS), self.draw.uniform(2.0, FAULTS_S))

    async def _one(self, kind: str, at_s: float) -> None:
        await trio.sleep(at_s)
        living = sorted(peer for peer in self.world.services if peer not in self.world.killed)
        peer, lasts_s = self.draw.choice(living), self.draw.uniform(0.5, 9.0)
        self.happened.append(f"{at_s:.1f} s: {kind} {peer}")
        await getattr(self, f"_{kind}")(peer, lasts_s)

    async def _kill(self, peer: PeerId, lasts_s: float) -> None:
        self.world.kill(peer)
        await trio.sleep(lasts_s)
        self._opens(int(peer[5]))

    async def _join(self, peer: PeerId, lasts_s: float) -> None:
        self._opens(self.draw.randrange(NUM_STAGES))

    def _opens(self, stage: int) -> None:
        newcomer = PeerId(f"stage{stage}new{self.num_joined}")
        self.num_joined += 1
        self.world.open(newcomer, stage)
        self.world.pace_s[newcomer] = self.draw.uniform(0.05, 0.4)

    async def _freeze(self, peer: PeerId, lasts_s: float) -> None:
        self.world.swarm.freeze(peer)
        await trio.sleep(lasts_s)
        if peer not in self.world.killed:
            self.world.swarm.thaw(peer)

    async def _cut(self, peer: PeerId, lasts_s: float) -> None:
        others = [other for other in self.world.services if other != peer and self.draw.random() < 0.5]
        self.world.swarm.cut([peer], others)
        await trio.sleep(lasts_s)
        self.world.swarm.mend([peer], others)

    async def _slow(self, peer: PeerId, lasts_s: float) -> None:
        before, self.world.pace_s[peer] = self.world.pace_s[peer], 4.0
        await trio.sleep(lasts_s)
        self.world.pace_s[peer] = before

    async def _streams(self, peer: PeerId, lasts_s: float) -> None:
        for _ in range(10):
            self.world.break_streams()
            await trio.sleep(lasts_s / 10)

    async def _loss(self, peer: PeerId, lasts_s: float) -> None:
        self.world.comes = lambda reply: self.draw.choices([0, 1, 2], [0.2, 0.6, 0.2])[0]
        await trio.sleep(lasts_s)
        self.world.comes = lambda reply: 1


async def play(seed: int) -> list[str]:
    """What happened in a story; fails where a rule was broken."""
    async with open_synced(CONFIG, seed=seed) as world:
        story = Story(world, random.Random(seed))
        story.begin()
        with trio.move_on_after(WITHIN_S) as patience:
            while min(world.rounds.index(stage) for stage in range(NUM_STAGES)) < ROUNDS:
                await trio.sleep(0.5)
                if world.ledger.violations:
                    break
        if patience.cancelled_caught:
            done = [world.rounds.index(stage) for stage in range(NUM_STAGES)]
            raise AssertionError(f"seed {seed}: rounds {done} after {WITHIN_S:g} s; {story.happened}")
    return story.happened


def simulate(seed: int) -> list[str]:
    """One seed in virtual time."""
    return trio.run(play, seed, clock=trio.testing.MockClock(autojump_threshold=0.0))


def main(arguments: Sequence[str]) -> int:
    """One line for each seed that fails, and how many there were."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.synced_steps", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=1)
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    failed = 0
    for seed in range(options.start, options.start + options.seeds):
        try:
            simulate(seed)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever it is, the seed has found it
            failed += 1
            print(f"seed {seed}: {error!r}"[:400])
    print(f"{options.seeds} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
