"""Swarms behind slow links in virtual time: the production round machine, with rounds of fixed work or as long as it measures itself.

Every peer has a line of its own for bulk, up; what it carries is made as slow as if the model had `values` parameters. Messages are as
large as they are. In blocking runs training stands still from the snapshot to the commit.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import trio

from averaging.network.memory import memory_stream
from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import KeptPart, Snapshot
from averaging.rounds import external_reducer as lending
from averaging.rounds.traffic import transfer
from averaging.rounds.traffic.transfer import PIECE_BYTES
from protocol.ids import PeerId, UnitName
from protocol.rounds import machine as core
from protocol.rounds.events import Event
from protocol.rounds.messages.messages import Member
from protocol.rounds.orders import DropMember
from protocol.rounds.schedule.target import MeasuredRound, RoundTarget
from protocol.rounds.state import RoundConfig, RoundState, RoundStep
from protocol.run.traffic import update_bytes
from tests.simulation import node as nodes
from tests.simulation import swarm as worlds
from tests.simulation import virtual_time
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.swarm import World
from tests.simulation.trainer import STEP_TOKENS, SimulatedTrainer

CODEC: Final = "e3m0"
NUM_CHUNKS: Final = 128
"""More than other simulations have: a frame of one is not to take longer than streams may stand still."""

FRAMES_ON_THE_WAY: Final = 2
"""Of a stream: senders measure how fast it goes by when the next frame may be sent."""

NUM_ELEMENTS: Final = NUM_CHUNKS * 1024
MOST_STEPS: Final = 1 << 20
"""Of a measured round, more than any of these take."""


@dataclass(frozen=True, slots=True)
class Links:
    """The lines between the peers, and the training peers.

    Attributes:
        bits_per_s: of each peer, upwards.
        latency_s: one way.
        loss: share of the messages and frames that are lost.
        step_s: of a local step.
        values: of the model.
        then_bits_per_s: of each peer's line once `changes_after` rounds were measured; None where it stays as it is.
    """

    bits_per_s: float
    latency_s: float = 0.02
    loss: float = 0.0
    step_s: float = 0.4
    num_peers: int = 4
    values: int = 51_528_704
    then_bits_per_s: float | None = None
    changes_after: int = 0

    def rate(self, num_rounds: int) -> float:
        """Bits a second upwards, now that so many rounds were measured."""
        is_later = self.then_bits_per_s is not None and num_rounds >= self.changes_after
        return self.then_bits_per_s if is_later and self.then_bits_per_s is not None else self.bits_per_s

    @property
    def scale(self) -> float:
        """Bytes on the line for each byte that is simulated."""
        chunk = NUM_ELEMENTS // NUM_CHUNKS
        return update_bytes(CODEC, self.values, 16384) / update_bytes(CODEC, NUM_ELEMENTS, chunk)

    @property
    def piece_bytes(self) -> int:
        """Of a result that is fetched, as long on the line as in the product: else all of it is one frame, which nobody waits for."""
        # by the product's own length, which is another one in `transfer` while a simulation runs
        return max(transfer.SMALLEST_FRAME_BYTES, int(PIECE_BYTES / self.scale))


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """How rounds are due: after so many local steps of each peer, or, with None, as measured for this utilisation."""

    steps: int | None
    utilisation: float = 0.95
    is_blocking: bool = False

    def target(self, num_peers: int) -> RoundTarget:
        """The production rule."""
        if self.steps is not None:
            return RoundTarget(num_peers * self.steps * STEP_TOKENS)
        share = 1.0 - self.utilisation if self.is_blocking else self.utilisation
        return RoundTarget(num_peers * MOST_STEPS * STEP_TOKENS, STEP_TOKENS, 0.0, share, self.is_blocking)


@dataclass
class Reported:
    """The reports of the peers and their openers.

    Attributes:
        rounds: as their leaders measured them.
        deaths: who took whom for dead, on which base.
        num_partial: rounds without somebody's work.
        targets: at how many tokens the round after a commit is due, by the commit's index, as anybody has it.
        lasted_s: virtual time.
    """

    num_peers: int
    step_s: float
    rounds: list[MeasuredRound] = field(default_factory=list)
    deaths: set[str] = field(default_factory=set)
    num_partial: int = 0
    targets: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    lasted_s: float = 0.0

    def steady(self, num_rounds: int) -> Sequence[MeasuredRound]:
        """The last so many rounds."""
        return self.rounds[-num_rounds:]

    def steps(self, num_rounds: int) -> float:
        """Local steps of a peer in one of these."""
        tokens = statistics.fmean(one.tokens for one in self.steady(num_rounds))
        return tokens / (self.num_peers * STEP_TOKENS)

    def exchange_share(self, num_rounds: int) -> float:
        """Share of the time in which something is exchanged."""
        steady = self.steady(num_rounds)
        return sum(one.exchange_s for one in steady) / sum(one.round_s for one in steady)

    def utilisation(self, num_rounds: int) -> float:
        """Share of the time in which peers train."""
        steady = self.steady(num_rounds)
        steps = sum(one.tokens for one in steady) / (self.num_peers * STEP_TOKENS)
        return steps * self.step_s / sum(one.round_s for one in steady)


class StandingTrainer(SimulatedTrainer):
    """Training stands still from each snapshot to the commit or load after it."""

    _still_since_s: float | None = None

    def _sync(self) -> None:
        if self._still_since_s is None:
            super()._sync()
        else:
            self._process.check_alive()

    def _go_on(self) -> None:
        if self._still_since_s is not None:
            self._began_s += self._process.awake_s() - self._still_since_s
            self._still_since_s = None

    async def snapshot(self) -> Snapshot:
        """At the next step boundary, the last one for now."""
        self._go_on()
        taken = await super().snapshot()
        self._still_since_s = self._process.awake_s()
        return taken

    async def shift(
        self, shift_N: object, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """Goes on."""
        self._go_on()
        await super().shift(shift_N, credited_tokens=credited_tokens, schedule_tokens=schedule_tokens, kept=kept)  # type: ignore[arg-type]


class LinkedWorld(World):
    """A world whose rounds are due as a pace says."""

    timing: RoundTiming

    def round_config(self, me: Member, unit: UnitName) -> RoundConfig:
        """With the rule for targets."""
        target = self.timing.target(len(self.nodes))
        return replace(super().round_config(me, unit), target=target)


@contextmanager
def _slow(swarm: MemorySwarm, links: Links, reported: Reported) -> Iterator[None]:
    """Bulk leaves each peer one frame after another, at its line's rate."""
    real, free_s = swarm.frame_delay_s, defaultdict[PeerId, float](float)

    def frame_delay_s(sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
        delay_s, _ = real(sender, receiver, 0)  # packets are lost here, and connections live
        now_s = trio.current_time()
        free_s[sender] = max(now_s, free_s[sender]) + num_bytes * links.scale * 8 / links.rate(len(reported.rounds))
        return delay_s + free_s[sender] - now_s, False

    with replaced(swarm, frame_delay_s=frame_delay_s):
        yield


@contextmanager
def _listening(reported: Reported) -> Iterator[None]:
    """To every step of every round machine, and to every measurement."""
    real_step, real_after = core.step, RoundTarget.after

    def step(before: RoundState, event: Event, now_s: float) -> RoundStep:
        taken = real_step(before, event, now_s)
        link = taken.state.link
        dropped = [order.peer for order in taken.actions if isinstance(order, DropMember)]
        reported.deaths |= {f"{before.config.me.peer} of {peer} after {link.index}" for peer in dropped}
        reported.targets[link.index].add(link.target_tokens)
        if link is not before.link and link.record is not None and len(link.record.contributors) < reported.num_peers:
            reported.num_partial += 1
        return taken

    def after(rule: RoundTarget, total_tokens: int, num_members: int, measured: MeasuredRound) -> int:
        reported.rounds.append(measured)
        return real_after(rule, total_tokens, num_members, measured)

    with replaced(core, step=step), replaced(RoundTarget, after=after):
        yield


def run(
    links: Links, timing: RoundTiming, until: Callable[[Reported], bool], limit_s: float, *, seed: int = 1
) -> Reported:
    """A swarm from its start until enough was told, or until so much virtual time has passed."""
    reported = Reported(links.num_peers, links.step_s)
    trainer = StandingTrainer if timing.is_blocking else SimulatedTrainer
    with (
        _listening(reported),
        replaced(nodes, SimulatedTrainer=trainer),
        replaced(worlds, NUM_CHUNKS=NUM_CHUNKS),
        replaced(memory_stream, FRAME_BUFFER=FRAMES_ON_THE_WAY),
        replaced(transfer, PIECE_BYTES=links.piece_bytes),
        replaced(lending, PIECE_BYTES=links.piece_bytes),
    ):
        virtual_time.run(seed, partial(_play, links, timing, reported, until, limit_s, seed))
    return reported


async def _play(
    links: Links, timing: RoundTiming, reported: Reported, until: Callable[[Reported], bool], limit_s: float, seed: int
) -> None:
    profile = Profile(
        "slow links",
        tokens_per_s=STEP_TOKENS / links.step_s,
        longest_interval_s=86_400.0,
        heartbeat_s=1.0,
        num_elements=NUM_ELEMENTS,
        codec=CODEC,
    )
    async with trio.open_nursery() as nursery:
        world = LinkedWorld(seed, nursery, links.num_peers, links.num_peers, profile)
        world.timing = timing
        world.swarm.loss = links.loss
        for node in world.nodes:
            node.tokens_per_s = profile.tokens_per_s
            world.swarm.speeds[node.peer] = LinkSpeed(links.latency_s, 1e9)
        nursery.start_soon(world.host.serve)
        with ExitStack() as stack:
            stack.enter_context(_slow(world.swarm, links, reported))
            for node in world.nodes:
                world.boot(node)
            await _until(world, lambda: until(reported) or trio.current_time() >= limit_s)
        reported.lasted_s = trio.current_time()
        nursery.cancel_scope.cancel()


async def _until(world: World, is_over: Callable[[], bool]) -> None:
    sleep: Callable[[float], Awaitable[None]] = world.swarm.timers.sleep
    while not is_over():
        await sleep(5.0)
