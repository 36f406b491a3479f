"""Peers of synced steps over the network in memory, and the one data peer that they come to together."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import torch
import trio

from averaging.codecs.boundary import BoundaryCodec
from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.offload import InlineOffload
from peer.pipeline.lane_service import LaneRole
from peer.pipeline.seats.synced_owner import SyncedOwner
from peer.pipeline.stage.lane_compute import ComputeContext, LaneShape
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.pipeline.stage.synced_compute import Served, SyncedCompute
from peer.pipeline.synced_service import SyncedService
from peer.pipeline.transport.lane_network import OwnLoop
from peer.pipeline.transport.lane_work import LaneContext, LaneShare, OffloadedSynced
from protocol.ids import CommitId, PeerId
from protocol.pipeline.lanes.lane_forming import keeper_order
from protocol.pipeline.messages.synced_messages import SyncedReply
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.run.training_sections import InnerSection
from tests.peer.lane_swarm import SHAPE
from tests.peer.lane_world import INNER, NUM_STAGES, averaged, tokens_of
from tests.peer.stage_world import ANCHOR_N, RUN, STAGES, part_of, stage_model

GENESIS = CommitId(b"g" * 32)
OWNER = keeper_order(GENESIS, [PeerId(f"stage0peer{number}") for number in range(2)])[0]

About = Callable[[PeerId, int, Point, Pass], None]


@dataclass
class Rounds:
    """The rounds of all stages: over when every living replica of the stage has brought its share."""

    swarm: SyncedSwarm
    shares: dict[tuple[int, int], dict[PeerId, LaneShare]] = field(default_factory=dict)
    anchors: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    tokens: dict[tuple[int, int], int] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)

    def index(self, stage: int) -> int:
        """Rounds of a stage that are over."""
        return sum(1 for _, of in self.anchors if of == stage)

    async def average(self, peer: PeerId, share: LaneShare) -> torch.Tensor:
        place = (self.index(share.stage), share.stage)
        self.shares.setdefault(place, {})[peer] = share
        try:
            return await self._averaged(place)
        finally:
            if place not in self.anchors:  # its group has ended
                del self.shares[place][peer]

    async def _averaged(self, place: tuple[int, int]) -> torch.Tensor:
        while place not in self.anchors:
            shares = {p: one for p, one in self.shares[place].items() if p not in self.swarm.killed}
            if set(shares) == self.swarm.seated(place[1]):
                base = self.base(*place)
                thetas = [(one.theta_N, one.tokens) for one in shares.values()]
                assert all(torch.equal(theta_N, thetas[0][0]) for theta_N, _ in thetas), "replicas are not equal"
                self.anchors[place] = averaged(*base, thetas)
                self.tokens[place] = sum(one.tokens for one in shares.values())
                self.changed.set()
                self.changed = trio.Event()
                break
            with trio.move_on_after(0.2):
                await self.changed.wait()
        return self.anchors[place][0]

    def base(self, round_: int, stage: int) -> tuple[torch.Tensor, torch.Tensor]:
        start_N = part_of(ANCHOR_N.double(), stage)
        return self.anchors[round_ - 1, stage] if round_ else (start_N, torch.zeros_like(start_N))

    async def anchor(self, round_: int) -> torch.Tensor:
        """(N,) of the whole model, once this round is over at all stages."""
        places = [(round_, stage) for stage in range(NUM_STAGES)]
        while not all(place in self.anchors for place in places):
            await self.changed.wait()
        return torch.cat([self.anchors[place][0] for place in places])


@dataclass
class Ledger:
    """What replicas add up, whatever anybody says about it.

    Attributes:
        sums: micro-batches in each sum that was brought to others, by the hash of its bytes.
        taken: micro-batches in each step of each group, the same at every stage and replica.
        lost, twice: micro-batches that some stage's step had not, or more than once.
        violations: in words.
    """

    num_micro_batches: int
    sums: dict[bytes, Counter[int]] = field(default_factory=dict)
    taken: dict[tuple[int, Point], frozenset[int]] = field(default_factory=dict)
    removed: dict[Point, set[int]] = field(default_factory=dict)
    lost: set[tuple[Point, int]] = field(default_factory=set)
    twice: set[tuple[Point, int]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)

    def stepped(self, group: int, at: Point, summed: Counter[int], counted: int) -> None:
        """A replica takes a step with the gradients of these micro-batches."""
        numbers = frozenset(summed)
        twice = sorted(number for number, times in summed.items() if times != 1)
        self.twice |= {(at, number) for number in twice}
        if twice or len(numbers) != counted:
            self.violations.append(f"{at}: {dict(summed)} for a step of {counted}, {twice} folded twice")
        lost = set(range(self.num_micro_batches)) - numbers - self.removed.get(at, set())
        self.lost |= {(at, number) for number in lost}
        if lost:
            self.violations.append(f"{at}: {sorted(lost)} are lost")
        if self.taken.setdefault((group, at), numbers) != numbers:
            self.violations.append(f"{at}: {sorted(numbers)} here, {sorted(self.taken[group, at])} at others")


class SlowWork(OffloadedSynced):
    """Takes its time with each piece of work, says what it is about to do, and writes into the ledger what it adds up."""

    def __init__(
        self,
        work: SyncedCompute,
        about: Callable[[Point, Pass], bool],
        pace_s: Callable[[], float],
        summing: Callable[[], None],
        ledger: tuple[Ledger, int],
    ) -> None:
        super().__init__(work, InlineOffload())
        self._about, self._pace_s, self._summing = about, pace_s, summing
        self._ledger, self._lane = ledger
        self.summed = Counter[int]()

    async def grant(self, number: int) -> None:
        await super().grant(number)
        self.summed[number] += 1

    async def forget(self) -> None:
        await super().forget()
        self.summed = Counter()

    async def own_sum(self) -> bytes:
        self._summing()
        await trio.sleep(0.0)
        data = await super().own_sum()
        self._ledger.sums[sha256(data).digest()] = Counter(self.summed)
        return data

    async def total(self, sums: Sequence[bytes]) -> float:
        square = await super().total(sums)
        self.summed = sum((self._ledger.sums[sha256(data).digest()] for data in sums), Counter[int]())
        return square

    async def take_mean_step(self, at: Point, whole_square: float, counted: int) -> bool:
        self._ledger.stepped(self._lane, at, self.summed, counted)
        self.summed = Counter()
        return await super().take_mean_step(at, whole_square, counted)

    async def serve(self, at: Point, work: Pass, forward: bytes, backward: bytes) -> Served:
        is_spoilt = self._about(at, work)
        await trio.sleep(self._pace_s())
        if is_spoilt:
            return Served(is_spoilt=True)
        return await super().serve(at, work, forward, backward)


def nothing(peer: PeerId, stage: int, at: Point, work: Pass) -> None:
    """No work is disturbed."""


@dataclass
class SyncedSwarm:
    """Peers of one run.

    Attributes:
        about: told before each piece of work; may kill.
        summing: the same before a replica brings its sum to others.
        comes: how often a reply reaches its owner.
        pace_s: of a peer's pieces of work.
        done: how many it has begun.
        measured: what held-out text came to, by the round whose first parameters it is of.
        has_measured: who knows that its part in that is done.
        spoilt: micro-batches whose last stage finds that they are not finite.
    """

    swarm: MemorySwarm
    nursery: trio.Nursery
    config: LaneConfig
    codecs: tuple[BoundaryCodec, BoundaryCodec]
    dtype: torch.dtype = torch.float64
    inner: InnerSection = INNER
    about: About = nothing
    summing: Callable[[PeerId, int], None] = lambda peer, stage: None
    comes: Callable[[SyncedReply], int] = lambda reply: 1
    pace_s: dict[PeerId, float] = field(default_factory=dict)
    services: dict[PeerId, SyncedService] = field(default_factory=dict)
    scopes: dict[PeerId, trio.CancelScope] = field(default_factory=dict)
    killed: set[PeerId] = field(default_factory=set)
    done: dict[PeerId, int] = field(default_factory=dict)
    spoilt: set[tuple[Point, int]] = field(default_factory=set)
    measured: dict[int, list[float]] = field(default_factory=dict)
    has_measured: dict[int, set[PeerId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rounds = Rounds(self)
        self.ledger = Ledger(self.config.num_micro_batches)

    @property
    def owner(self) -> SyncedOwner:
        """Of the group."""
        (owner,) = [s.owners.owner for p, s in self.services.items() if s.owners.owner and p not in self.killed]
        assert owner is not None
        return owner

    def seated(self, stage: int) -> set[PeerId]:
        """Who serves this stage."""
        living = {p: s.member.seat for p, s in self.services.items() if p not in self.killed}
        return {peer for peer, seat in living.items() if seat is not None and seat.stage == stage}

    def open(self, peer: PeerId, stage: int) -> None:
        """A peer that holds a stage."""

        def holders(of: int) -> list[PeerId]:
            return [p for p, one in self.services.items() if one.role.stage == of and p not in self.killed]

        role = LaneRole(stage, 1, GENESIS, holders, partial(self.rounds.index, stage), lambda: "")
        service = self.services[peer] = SyncedService(self._tools(peer), role)
        service.member._takes_reply = partial(self._take_reply, service)
        service.serve()
        scope = self.scopes[peer] = trio.CancelScope()
        self.nursery.start_soon(self._run, scope, service)

    async def _run(self, scope: trio.CancelScope, service: SyncedService) -> None:
        with scope:
            await service.run()

    def begin_anew(self, peer: PeerId, stage: int) -> None:
        """It leaves, and comes back at once with another stage."""
        self.scopes[peer].cancel()
        self.open(peer, stage)

    def kill(self, peer: PeerId) -> None:
        """kill -9."""
        self.killed.add(peer)
        self.swarm.kill(peer)
        self.scopes[peer].cancel()

    def break_streams(self) -> None:
        """All that are open: what was not answered comes once more."""
        for service in self.services.values():
            for pipe in list(service._tools.network._network.host.pipes.values()):  # type: ignore[attr-defined]
                pipe.reset()

    def _take_reply(self, service: SyncedService, sender: PeerId, reply: SyncedReply, data: bytes) -> None:
        for _ in range(self.comes(reply)):
            service.owners.take_reply(sender, reply, data)

    def _tools(self, peer: PeerId) -> LaneContext:
        network = OwnLoop(self.swarm.start(peer))
        form = LaneShape(RUN, self.config, STAGES, SHAPE, *self.codecs, self.dtype)
        rate = self.inner.learning_rate
        compute = ComputeContext(form, partial(self._trainer, peer), self._tokens_of, lambda at: rate)

        def synced_of(number: int, stage: int) -> SlowWork:
            work = SyncedCompute(compute, number, stage)
            return SlowWork(
                work,
                partial(self._about, peer, stage),
                lambda: self.pace_s.get(peer, 0.02),
                lambda: self.summing(peer, stage),
                (self.ledger, number),
            )

        return LaneContext(
            network, InlineOffload(), form, synced_of, partial(self.rounds.average, peer), self._bring,
            synced_of=synced_of, measured=partial(self._measured, peer),
        )  # fmt: skip

    async def _bring(self, share: LaneShare) -> None:
        raise AssertionError("replicas bring nothing for others")

    def _about(self, peer: PeerId, stage: int, at: Point, work: Pass) -> bool:
        self.done[peer] = self.done.get(peer, 0) + 1
        self.about(peer, stage, at, work)
        is_spoilt = stage == NUM_STAGES - 1 and (at, work.number) in self.spoilt
        if is_spoilt:
            self.ledger.removed.setdefault(at, set()).add(work.number)
        return is_spoilt

    def _measured(self, peer: PeerId, round_: int, nats: float | None) -> None:
        self.has_measured.setdefault(round_, set()).add(peer)
        if nats is not None:
            self.measured.setdefault(round_, []).append(nats)

    def _tokens_of(self, _number: int, at: Point, micro: int) -> torch.Tensor:
        """Whatever the group's number is."""
        return tokens_of(0, at, micro)

    def _trainer(self, peer: PeerId, stage: int) -> StageTrainer:
        trainer = StageTrainer(stage_model(stage, self.dtype), self.inner, most_kept=1)
        round_ = self.services[peer].role.index()
        trainer.load(self.rounds.base(round_, stage)[0])
        return trainer


def names(replicas: Sequence[int]) -> Iterator[tuple[PeerId, int]]:
    """Peers and their stages."""
    for stage, num in enumerate(replicas):
        for number in range(num):
            yield PeerId(f"stage{stage}peer{number}"), stage


@asynccontextmanager
async def open_synced(
    config: LaneConfig,
    *,
    replicas: Sequence[int] = (2, 2, 2),
    codecs: tuple[BoundaryCodec, BoundaryCodec] = ("fp64", "fp64"),
    dtype: torch.dtype = torch.float64,
    inner: InnerSection = INNER,
    seed: int = 1,
) -> AsyncIterator[SyncedSwarm]:
    """A swarm that begins by itself, in the time of whatever clock runs; everything ends with the block."""
    with trio.fail_after(600.0):
        async with trio.open_nursery() as nursery:
            world = SyncedSwarm(MemorySwarm(nursery, random.Random(seed)), nursery, config, codecs, dtype, inner)
            for peer, stage in names(replicas):
                world.open(peer, stage)
            yield world
            nursery.cancel_scope.cancel()
        if world.ledger.violations:
            raise AssertionError("; ".join(world.ledger.violations[:5]))
