"""python -m tests.simulation.lane_steps --seeds N --start S: lanes of whole peers under faults that are drawn from a seed.

Peers are killed and others come, freeze, leave, join, are slow, have slow links; streams break. Always: what a stage's commit has of a
lane is what one data peer comes to with as many tokens from the same beginning; a lane is in a round once at every stage, with the
same tokens, or somebody says where it is lost; of a lane that ended these are the tokens of its last snapshot; and rounds go on.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
import trio

from averaging.network.memory.memory_network import LinkSpeed
from protocol.ids import PeerId
from tests.peer.lane_world import NUM_STAGES, lane_config
from tests.simulation import virtual_time
from tests.simulation.lane_peers import EXCHANGE_S, LaneWorld, open_lane_world

CONFIG = lane_config(inner_steps=4, snapshot_steps=2)
ROUNDS = 4
WITHIN_S = 400.0
"""For all rounds, faults over the first half minute."""

FAULTS_S = 30.0
LONG_EXCHANGE_S = (3.0, 9.0)
"""Longer than a member is suspected in, and its seat taken."""

KINDS = ("kill", "kill", "freeze", "leave", "join", "slow", "link", "streams")
REPLICAS = ((2, 2, 2), (3, 2, 2), (2, 3, 3), (1, 2, 3))


@dataclass
class Story:
    """One seed's faults.

    Attributes:
        happened: each fault, in words.
    """

    world: LaneWorld
    draw: random.Random
    happened: list[str] = field(default_factory=list)
    num_joined: int = 0

    def begin(self) -> None:
        """Faults come in their own time."""
        for _ in range(self.draw.randint(2, 7)):
            self.world.nursery.start_soon(self._one, self.draw.choice(KINDS), self.draw.uniform(2.0, FAULTS_S))

    async def _one(self, kind: str, at_s: float) -> None:
        await trio.sleep(at_s)
        peer = self.draw.choice(sorted(set(self.world.peers) - self.world.killed))
        lasts_s = self.draw.uniform(0.5, 9.0)
        self.happened.append(f"{at_s:.1f} s: {kind} {peer} {lasts_s:.1f} s")
        await getattr(self, f"_{kind}")(peer, lasts_s)

    async def _kill(self, peer: PeerId, lasts_s: float) -> None:
        self.world.kill(peer)
        await trio.sleep(lasts_s)
        self._opens(self.world.peers[peer].stage)

    async def _leave(self, peer: PeerId, lasts_s: float) -> None:
        self.world.peers[peer].why_not = "its owner stops it"
        await trio.sleep(3.0)
        if peer not in self.world.killed:
            await self._kill(peer, lasts_s)

    async def _join(self, peer: PeerId, lasts_s: float) -> None:
        self._opens(self.draw.randrange(NUM_STAGES))

    def _opens(self, stage: int) -> None:
        newcomer = PeerId(f"stage{stage}new{self.num_joined}")
        self.num_joined += 1
        self.world.open(newcomer, stage, self.draw.uniform(0.02, 0.25))

    async def _freeze(self, peer: PeerId, lasts_s: float) -> None:
        if self.world.peers[peer].is_frozen:
            return
        self.world.freeze(peer)
        await trio.sleep(lasts_s)
        if peer not in self.world.killed:
            await self.world.thaw(peer)

    async def _slow(self, peer: PeerId, lasts_s: float) -> None:
        one = self.world.peers[peer]
        before, one.pace_s = one.pace_s, 2.0
        await trio.sleep(lasts_s)
        one.pace_s = before

    async def _link(self, peer: PeerId, lasts_s: float) -> None:
        self.world.swarm.speeds[peer] = LinkSpeed(self.draw.uniform(0.05, 0.4), self.draw.uniform(20_000.0, 200_000.0))
        await trio.sleep(lasts_s)
        self.world.swarm.speeds.pop(peer, None)

    async def _streams(self, peer: PeerId, lasts_s: float) -> None:
        for _ in range(10):
            self.world.break_streams()
            await trio.sleep(lasts_s / 10)


async def play(seed: int, exchange_s: tuple[float, float] = EXCHANGE_S) -> tuple[LaneWorld, Story]:
    """The events of a story; fails if a rule was broken."""
    draw = random.Random(seed)
    replicas = draw.choice(REPLICAS)
    async with open_lane_world(CONFIG, replicas=replicas, seed=seed, exchange_s=exchange_s) as world:
        # every level, whatever was configured in this process before: what is said to be lost is heard here
        structlog.configure(processors=[world.log, _dropped], wrapper_class=structlog.make_filtering_bound_logger(0))
        story = Story(world, draw)
        story.begin()
        with trio.move_on_after(WITHIN_S):
            while min(unit.state.index for unit in world.units) < ROUNDS and not world.ledger.violations:
                await trio.sleep(0.5)
            await trio.sleep(1.0)
    world.virtual_s = trio.current_time()
    done, broken = [unit.state.index for unit in world.units], list(world.ledger.violations)
    if min(done) < ROUNDS:
        broken.append(f"rounds {done} after {WITHIN_S:g} s")
    for (lane, round_), stages in world.partial().items():
        if not any(said in world.ledger.said for stage in stages for said in ((lane, stage), (lane, -1))):
            broken.append(f"round {round_} of lane {lane} is not at stages {stages}, and nobody says so")
    if broken:
        raise AssertionError(f"seed {seed}: {'; '.join(broken[:3])}; {story.happened}")
    return world, story


def _dropped(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent


def simulate(seed: int, exchange_s: tuple[float, float] = EXCHANGE_S) -> tuple[LaneWorld, Story]:
    """One seed in virtual time."""
    return virtual_time.run(seed, partial(play, seed, exchange_s))


def main(arguments: Sequence[str]) -> int:
    """One line for each seed that fails, and how many there were."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.lane_steps", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument(
        "--long-exchanges", action="store_true", help="seats are lost and taken while rounds are exchanged"
    )
    options = parser.parse_args(arguments)
    failed, partial, checked, late = 0, 0, 0, 0
    for seed in range(options.start, options.start + options.seeds):
        try:
            world, story = simulate(seed, LONG_EXCHANGE_S if options.long_exchanges else EXCHANGE_S)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever it is, the seed has found it
            failed += 1
            print(f"seed {seed}: {error!r}"[:600], flush=True)
            continue
        if world.partial():
            print(seed, round(world.virtual_s), world.partial(), story.happened, flush=True)
        partial += len(world.partial())
        checked += world.ledger.num_checked
        late += world.ledger.num_late
    counted = f"{checked} shares counted, {late} of them a round late"
    print(f"{options.seeds} seeds, {failed} failed; {counted}, {partial} lanes' rounds not at every stage")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
