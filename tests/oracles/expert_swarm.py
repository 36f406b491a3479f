"""Peers that hold a trunk and experts, in virtual time: the rounds of each unit among those who hold it are production's, from the
snapshot to what is adopted and written, over the network in memory; training is production's too, a step when it is asked for.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
import trio

from averaging.arithmetic.genesis import genesis_anchor
from averaging.codecs import codec_by_name
from averaging.network.memory.memory_network import LinkSpeed, MemoryNetwork, MemorySwarm
from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, ReadAnchors, Snapshot, Trainer, TrainerProgress
from averaging.rounds.external_reducer import UnitShape
from averaging.rounds.head_vector import HeadVector
from averaging.rounds.lineage.round_context import RoundContext
from averaging.rounds.lineage.round_reports import RoundReport
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.peer_rounds import PeerContext, PeerRounds
from averaging.rounds.unit_service import RoundService
from averaging.state.generations import Generations
from averaging.state.state import UnitState, state_root
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from peer.training.local_training import LocalTrainer
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import OuterStep
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import encode_body, genesis_id
from protocol.rounds.schedule.stagger import UNSTAGGERED, Stagger
from protocol.rounds.schedule.target import RoundTarget
from protocol.rounds.state import RoundConfig
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_units import ModelUnits
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema
from tests.averaging.rounds.service_world import HandTrainer
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan
from tests.simulation.signing import HashSigner, HashVerifier, admission_of
from tests.virtual import InlineOffload, VirtualClock

RUN_ID = RunId(sha256(b"a swarm with experts").digest())
NESTEROV = OuterStep("nesterov", 0.7, 0.5)
VERIFIER = HashVerifier()
LONGEST_S = 3600.0
TOKENS_PER_S = 100.0


@dataclass(frozen=True)
class Settings:
    """The values that all peers have in common.

    Attributes:
        units: of the whole run, the spine first.
        target_tokens: of the spine's rounds; an expert's are due at its share.
    """

    units: ModelUnits
    target_tokens: int
    codec: str = "fp32"
    chunk_elements: int = 256

    def schema(self, unit: UnitName) -> TensorSchema:
        """Of one unit."""
        return self.units.schemas[self.units.place(unit)]

    def grid(self, unit: UnitName) -> ChunkGrid:
        """Of one unit."""
        return ChunkGrid(self.schema(unit).num_elements, self.chunk_elements)

    def target_of(self, unit: UnitName) -> int:
        """At how many tokens a unit's rounds are due: an expert's at its share of the trunk's, as in peer/session/build.py."""
        num_experts = len(self.units.schemas) - 1
        return self.target_tokens if unit == self.units.schemas[0].unit else self.target_tokens // num_experts

    def first_state(self, unit: UnitName, head: CommitId) -> UnitState:
        """Before the first round."""
        schema = self.schema(unit)
        anchor_N = genesis_anchor(schema, 1, self.units.whole)
        return UnitState(unit, head, 0, 0, anchor_N, torch.zeros_like(anchor_N))


class UnitOf:
    """The Trainer seam of one unit of a LocalTrainer in this process, as peer/worker.py obeys it."""

    def __init__(self, trainer: LocalTrainer, place: int) -> None:
        self._trainer = trainer
        self._place = place

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """Theta <- anchor."""
        self._trainer.load_unit(self._place, anchor_N, schedule_tokens)

    async def snapshot(self) -> Snapshot:
        """Theta and its tokens."""
        await trio.lowlevel.checkpoint()
        counters, place = self._trainer.counters, self._place
        theta_N = self._trainer.theta(place)
        return Snapshot(theta_N, counters.ready[place], self._trainer.steps_ready(place), counters.step)

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """Theta <- kept theta + shift."""
        self._trainer.keep(self._place, [(part.begin, part.stop, part.share) for part in kept])
        self._trainer.shift(shift_N, credited_tokens, schedule_tokens, self._place)

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """It never dies alone."""

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        """Nobody asks."""
        return HeldoutLosses((0.0,))

    def progress(self) -> TrainerProgress:
        """This unit's counters."""
        counters = self._trainer.counters
        ready = counters.ready[self._place]
        return TrainerProgress(ready, counters.tokens_trained, counters.loss_nats, TOKENS_PER_S, 0, "training", "")


@dataclass
class SwarmPeer:
    """One peer; `seams` are its units, the spine first, and `local` what trains them, where that is a LocalTrainer."""

    signer: HashSigner
    seams: Mapping[UnitName, Trainer]
    local: LocalTrainer | None
    is_inbound_reachable: bool
    network: MemoryNetwork
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    services: dict[UnitName, RoundService] = field(default_factory=dict)

    @property
    def peer(self) -> PeerId:
        """Its id."""
        return self.signer.peer_id

    @property
    def units(self) -> tuple[UnitName, ...]:
        """Those that it holds."""
        return tuple(self.seams)

    @property
    def trainer(self) -> LocalTrainer:
        """The process that trains them. Raises ValueError where that is none of these."""
        if self.local is None:
            raise ValueError("this peer was added without a LocalTrainer")
        return self.local

    def place(self, unit: UnitName) -> int:
        """Of one that it holds."""
        return self.units.index(unit)

    def train(self, num_steps: int) -> None:
        """Local steps, of its experts in turn."""
        for _ in range(num_steps):
            self.trainer.step()

    def on_disk(self, unit: UnitName) -> dict[str, bytes | tuple[bytes, ...]]:
        """All that lies there of a unit: files, and logs record by record."""
        begin = f"{unit}/"
        logs = {name: tuple(records) for name, records in self.disk.logs.items() if name.startswith(begin)}
        return {**{name: data for name, data in self.disk.files.items() if name.startswith(begin)}, **logs}

    def has_of(self, unit: UnitName) -> dict[str, object]:
        """All that it has of a unit, bit by bit: what it trains, the outer state, and what lies on its disk."""
        place, chain = self.place(unit), self.services[unit].chain
        return {
            "theta": self.trainer.theta(place).numpy().tobytes(),
            "tokens": self.trainer.counters.ready[place],
            "anchor": chain.state.anchor_N.numpy().tobytes(),
            "momentum": chain.state.momentum_N.numpy().tobytes(),
            "head": (chain.head.commit, chain.state.head),
            "disk": self.on_disk(unit),
        }

    def bulk_up(self, unit: UnitName) -> int:
        """Bytes of a unit that it has sent on bulk streams, by the network's own counters."""
        return sum(count.bytes_up for count in self.network.traffic().bulk if count.kind.unit == unit)


class ExpertSwarm:
    """Peers that all know each other; `run` has their rounds going on."""

    def __init__(self, nursery: trio.Nursery, settings: Settings) -> None:
        self.settings = settings
        self.peers: list[SwarmPeer] = []
        self._nursery = nursery
        self._swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 50_000_000.0))

    def add(self, trainer: LocalTrainer, *, is_inbound_reachable: bool = True) -> SwarmPeer:
        """A peer that holds the trainer's units, before `run`."""
        seams = {schema.unit: UnitOf(trainer, place) for place, schema in enumerate(trainer.units.schemas)}
        return self._added(seams, trainer, is_inbound_reachable=is_inbound_reachable)

    def add_offering(self, seams: Mapping[UnitName, Trainer]) -> SwarmPeer:
        """A peer whose units have these trainers, before `run`."""
        return self._added(seams, None, is_inbound_reachable=True)

    def _added(
        self, seams: Mapping[UnitName, Trainer], local: LocalTrainer | None, *, is_inbound_reachable: bool
    ) -> SwarmPeer:
        signer = HashSigner(bytes([len(self.peers)]))
        peer = SwarmPeer(signer, seams, local, is_inbound_reachable, self._swarm.start(signer.peer_id))
        self.peers.append(peer)
        return peer

    def holders(self, unit: UnitName) -> list[SwarmPeer]:
        """The holders of a unit."""
        return [peer for peer in self.peers if unit in peer.units]

    async def run(self) -> None:
        """Begin at the start of the run; returns when everybody has heard everybody."""
        start = self._start()
        rounds = [await self._open(peer, start) for peer in self.peers]
        for each in rounds:
            await self._nursery.start(each.run)
        for each in rounds:
            await each.list_peers(tuple(sorted(peer.peer for peer in self.peers)))
        await self.until(self._has_everybody_heard)

    def _has_everybody_heard(self) -> bool:
        others = len(self.peers) - 1
        states = [service.state for peer in self.peers for service in peer.services.values()]
        return all(sum(view.member is not None for view in state.peers.values()) == others for state in states)

    def _start(self) -> bytes:
        units = []
        for schema in self.settings.units.schemas:
            root = state_root(
                self.settings.first_state(schema.unit, CommitId(bytes(32))), self.settings.grid(schema.unit)
            )
            holders = tuple(sorted(peer.peer for peer in self.holders(schema.unit)))
            units.append(StartUnit(schema.unit, schema.fingerprint(), root, holders))
        roster = tuple(sorted(peer.peer for peer in self.peers))
        return encode_body(StartRecord(RUN_ID, tuple(units), roster, self.settings.target_tokens, 0, rules=NEW_RUNS))

    async def _open(self, peer: SwarmPeer, start: bytes) -> PeerRounds:
        members = {each.peer for each in self.peers}
        sequence = iter(range(1 << 32))
        clock, offload, settings = VirtualClock(), InlineOffload(), self.settings

        async def sealed(payload: bytes) -> bytes:
            return seal(peer.signer, ROUND_DOMAIN, RUN_ID, next(sequence), NEVER_MS, payload)

        async def is_member(other: PeerId) -> bool:
            return other in members

        tools = PeerContext(peer.network, clock, sealed, is_member, _unsaid)
        rounds = PeerRounds(RUN_ID, VERIFIER, tools, HeadVector(MemoryStorage(peer.disk)))
        if peer.is_inbound_reachable:
            codec = codec_by_name(settings.codec)
            units = [schema.unit for schema in settings.units.schemas]
            shapes = {unit: UnitShape(codec, settings.grid(unit), LONGEST_S) for unit in units}
            rounds.lend(Member(peer.peer, 1, 1), offload, shapes, partial(admission_of, peer.peer, RUN_ID))
        for unit, trainer in peer.seams.items():
            chain = self._chain(peer, unit, start)
            open_round = await chain.restore()
            if peer.local is not None:
                await trainer.load(chain.state.anchor_N, schedule_tokens=0)
            round_tools = RoundContext(
                peer.network,
                clock,
                offload,
                trainer,
                sealed,
                _unsaid,
                credential=partial(admission_of, peer.peer, RUN_ID),
            )
            service = RoundService(self._config(peer, unit), chain, open_round, round_tools, rounds)
            peer.services[unit] = service
            rounds.add(service)
        rounds.serve()
        return rounds

    def _chain(self, peer: SwarmPeer, unit: UnitName, start: bytes) -> UnitChain:
        storage, offload, grid = MemoryStorage(peer.disk, unit), InlineOffload(), self.settings.grid(unit)
        log, generations = UnitLog(storage), Generations(storage, grid, offload)
        codec = codec_by_name(self.settings.codec)
        tools = UnitContext(RUN_ID, unit, VERIFIER, codec, grid, offload, log, generations)
        return UnitChain(tools, start, self.settings.first_state(unit, genesis_id(start)))

    def _config(self, peer: SwarmPeer, unit: UnitName) -> RoundConfig:
        units = [schema.unit for schema in self.settings.units.schemas]
        spine, experts = units[0], max(1, len(units) - 1)
        return RoundConfig(
            run_id=RUN_ID,
            unit=unit,
            me=Member(peer.peer, 1, 1),
            verifier=VERIFIER,
            num_chunks=self.settings.grid(unit).num_chunks,
            codec=self.settings.codec,
            outer=NESTEROV,
            target=RoundTarget(self.settings.target_of(unit)),
            min_members=1,
            max_members=8,
            longest_interval_s=LONGEST_S,
            is_inbound_reachable=peer.is_inbound_reachable,
            spine=spine if len(units) > 1 else None,
            stagger=UNSTAGGERED if unit == spine else Stagger(0, experts),
        )

    async def until(self, is_true: Callable[[], bool], within_s: float = 300.0) -> None:
        """Wait for a condition, in virtual time."""
        with trio.fail_after(within_s):
            while not is_true():
                await trio.sleep(0.1)

    async def committed(self, indices: Mapping[UnitName, int]) -> None:
        """Until every holder of these units has so many rounds, adopted and kept on its disk."""

        def is_done() -> bool:
            services = [(peer.services[unit], n) for unit, n in indices.items() for peer in self.holders(unit)]
            return all(s.chain.head.index >= n and s.has_adopted and s.chain.is_kept for s, n in services)

        await self.until(is_done)


def _unsaid(_report: RoundReport) -> None:
    """Nobody watches."""


@asynccontextmanager
async def expert_swarm(settings: Settings) -> AsyncIterator[ExpertSwarm]:
    """A swarm whose tasks end with the block."""
    async with trio.open_nursery() as nursery:
        yield ExpertSwarm(nursery, settings)
        nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class Beside:
    """The outcome at a peer beside rounds of an expert that others hold.

    Attributes:
        before: all that it has of its own experts, before those rounds.
        after: the same, after them.
        of_averaged: what it has on its disk of the expert that was averaged.
        reducers: who summed that expert's rounds.
        bystander: it.
        moved: what each of those rounds changed in its trunk and in the expert at a holder, largest absolute difference.
    """

    before: Mapping[UnitName, object]
    after: Mapping[UnitName, object]
    of_averaged: Mapping[str, object]
    reducers: frozenset[PeerId]
    bystander: PeerId
    moved: tuple[float, ...]


async def beside_rounds_of_others(folder: Path, num_rounds: int = 2) -> Beside:
    """Experts 1 and 2 are held by one that takes part in the rounds of the trunk. Nobody can reach the two holders of expert 0, so
    that it sums for them, too, and has all bytes of their rounds.
    """
    mixture = MixtureConfig(num_experts=3, ffn_dim=8)
    units = held_units(MODEL, mixture, range(3))
    trunk, averaged, *others = (schema.unit for schema in units.schemas)

    def trainer(peer: str, *experts: int) -> LocalTrainer:
        return LocalTrainer(training_plan(folder, mixture=mixture, experts=experts, peer=peer))

    async with expert_swarm(Settings(units, target_tokens=8 * BATCH_TOKENS)) as swarm:
        holders = [swarm.add(trainer(name, 0), is_inbound_reachable=False) for name in ("a", "b")]
        bystander = swarm.add(trainer("c", 1, 2))
        await swarm.run()
        bystander.train(2)  # work of its own in each expert, too little for a round of them
        before = {unit: bystander.has_of(unit) for unit in others}
        seen, moved, reducers = [bystander.trainer.theta(0), holders[0].trainer.theta(1)], list[float](), set[PeerId]()
        for number in range(1, num_rounds + 1):
            for peer in holders:
                peer.train(4)
            await swarm.committed({trunk: number, averaged: number})
            record = holders[0].services[averaged].chain.head.record
            reducers |= {part.reducer for part in record.slices} if record is not None else set()
            now = [bystander.trainer.theta(0), holders[0].trainer.theta(1)]
            moved += [float((one - other).abs().max()) for one, other in zip(now, seen, strict=True)]
            seen = now
        after = {unit: bystander.has_of(unit) for unit in others}
        return Beside(before, after, bystander.on_disk(averaged), frozenset(reducers), bystander.peer, tuple(moved))


async def sent_a_round(settings: Settings, held: Sequence[Sequence[UnitName]]) -> float:
    """Bytes that a peer sends on bulk streams in a round of every unit, by the network's counters: the mean over all peers.

    Args:
        held: the units of each peer, the spine first.
    """

    def offering(unit: UnitName, number: int) -> HandTrainer:
        """Its part of the tokens at which a round is due: all holders are heard before it opens."""
        source, num_holders = torch.Generator().manual_seed(number), sum(unit in units for units in held)
        values_N = torch.randn(settings.schema(unit).num_elements, generator=source)
        return HandTrainer(values_N, -(-settings.target_of(unit) // num_holders))

    async with expert_swarm(settings) as swarm:
        for number, units in enumerate(held):
            swarm.add_offering({unit: offering(unit, number) for unit in units})
        await swarm.run()
        units = [schema.unit for schema in settings.units.schemas]
        await swarm.committed(dict.fromkeys(units, 1))
        return sum(peer.bulk_up(unit) for peer in swarm.peers for unit in units) / len(swarm.peers)
