"""A whole swarm in virtual time from one seed: production cores and services on the in-memory seams.

Every node is a process that can be crashed: from that instant its network, its disk and its trainer refuse everything, then its
scope is cancelled; writes in flight are lost whole or in part. A restart finds the disk as the crash left it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import torch
import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.generations import Generations
from averaging.network.clocks import VirtualClock
from averaging.network.memory_network import LinkSpeed, MemorySwarm
from averaging.network.memory_storage import MemoryDisk, MemoryStorage
from averaging.network.offload import InlineOffload
from averaging.rounds.membership import announce, list_peers
from averaging.rounds.service import RoundService, RoundTools
from averaging.rounds.unit import UnitChain, UnitTools
from averaging.state import UnitState, state_root
from averaging.unit_log import UnitLog
from protocol.envelope import seal
from protocol.errors import PotluckError
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.chain import ROUND_DOMAIN, ChainLink
from protocol.rounds.messages import Member, OuterStep, StartRecord, StartUnit
from protocol.rounds.state import RoundConfig
from protocol.tensor_schema import ChunkGrid
from protocol.wire import encode_body, genesis_id
from tests.simulation.signing import HashSigner, HashVerifier
from tests.simulation.trainer import SimulatedTrainer

UNIT = UnitName("fragment-0")
RUN_ID = RunId(sha256(b"simulated run").digest())
GRID = ChunkGrid(num_elements=96, chunk_elements=8)
TOKENS_PER_S = 400.0


@dataclass
class Trace:
    """What happened, in order; its hash says whether two simulations were the same."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """One line at the current virtual time."""
        self.lines.append(f"{trio.current_time():.6f} {line}")

    def digest(self) -> str:
        """Hash of all lines."""
        return sha256("\n".join(self.lines).encode()).hexdigest()


@dataclass
class Observed:
    """What the invariants look at: every commit that any node ever applied."""

    roots: dict[CommitId, Root] = field(default_factory=dict)
    parents: dict[CommitId, CommitId] = field(default_factory=dict)
    contributions: dict[tuple[CommitId, PeerId], Root] = field(default_factory=dict)
    members: dict[int, tuple[PeerId, ...]] = field(default_factory=dict)

    def commit(self, link: ChainLink, root: Root) -> None:
        """One commit per base, one state per commit, no contribution root twice."""
        record = link.record
        if record is None:
            return
        known = self.parents.setdefault(record.parent, link.commit)
        if known != link.commit:
            raise AssertionError(f"two commits on one base: {known.hex()[:8]} and {link.commit.hex()[:8]}")
        if self.roots.setdefault(link.commit, root) != root:
            raise AssertionError(f"commit {link.commit.hex()[:8]} has two states")
        for entry in record.contributors:
            key = (link.commit, entry.peer)
            for (other, peer), seen in self.contributions.items():
                if peer == entry.peer and seen == entry.root and other != link.commit:
                    raise AssertionError(f"a contribution of {peer} was applied twice")
            self.contributions[key] = entry.root
        self.members[link.index] = tuple(entry.peer for entry in record.contributors)


class Node:
    """One peer over its process lives."""

    def __init__(self, world: World, number: int, tokens_per_s: float) -> None:
        self.world = world
        self.signer = HashSigner(f"{world.seed}/{number}".encode())
        self.disk = MemoryDisk()
        self.tokens_per_s = tokens_per_s
        self.session = 0
        self.scope: trio.CancelScope | None = None
        self.service: RoundService | None = None
        self.is_up = False

    @property
    def peer(self) -> PeerId:
        """Its id."""
        return self.signer.peer_id

    async def live(self) -> None:
        """One process life, until crashed or cancelled."""
        world = self.world
        self.session += 1
        self.disk.power_on()
        sequence = iter(range(self.session << 32, (self.session + 1) << 32))
        chooser = random.Random(f"{world.seed}/{self.peer}/{self.session}")
        network = world.swarm.start(self.peer)
        offload, clock = InlineOffload(), VirtualClock()
        storage = MemoryStorage(self.disk)
        codec = codec_by_name("int8")
        tools = UnitTools(
            RUN_ID, UNIT, world.verifier, codec, GRID, offload, UnitLog(storage), Generations(storage, GRID, offload)
        )
        chain = UnitChain(tools, world.start_record, world.genesis)
        trainer = SimulatedTrainer(GRID.num_elements, self.tokens_per_s, chooser)

        async def sealed(payload: bytes) -> bytes:
            expires_ms = int((clock.unix_s() + 300) * 1000)
            return seal(self.signer, ROUND_DOMAIN, RUN_ID, next(sequence), expires_ms, payload)

        try:
            with trio.CancelScope() as scope:
                self.scope = scope
                self.is_up = True
                open_round = await chain.restore()
                await trainer.load(chain.state.anchor_N, schedule_tokens=chain.head.total_tokens)
                config = world.round_config(Member(self.peer, 1, self.session))
                service = RoundService(
                    config,
                    chain,
                    open_round,
                    RoundTools(network, clock, offload, trainer, sealed, _is_member, self._published, chooser),
                )
                self.service = service
                service.serve()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trainer.run)
                    nursery.start_soon(announce, network, clock, RUN_ID, _no_value)
                    nursery.start_soon(list_peers, network, RUN_ID, self._listed)
                    await service.run()
        except* PotluckError as group:
            if not scope.cancel_called:
                raise AssertionError(f"{self.peer} died of {group.exceptions}") from group
        self.is_up = False

    async def _listed(self, entries: object) -> None:
        if self.service is not None:
            await self.service.list_peers(tuple(PeerId(e.subkey) for e in entries))  # type: ignore[attr-defined]

    def _published(self, event: str, fields: Mapping[str, object]) -> None:
        self.world.trace.add(f"{self.peer} {event} {fields.get('reason', '')}")
        if event == "committed" and self.service is not None:
            link = fields["link"]
            if isinstance(link, ChainLink):
                self.world.trace.add(f"{self.peer} commit {link.commit.hex()}")
                self.world.observed.commit(link, self.service.chain.root)

    def crash(self) -> None:
        """kill -9."""
        if self.scope is None or not self.is_up:
            return
        self.world.trace.add(f"{self.peer} crashes")
        self.disk.crash(self.world.chooser)
        self.world.swarm.kill(self.peer)
        self.is_up = False
        self.scope.cancel()

    @property
    def index(self) -> int:
        """Commits applied."""
        return self.service.chain.head.index if self.service is not None else 0


async def _is_member(peer: PeerId) -> bool:
    return True


async def _no_value(expires_unix_s: float) -> bytes:
    return b""


class World:
    """The swarm, its trace and its invariants."""

    def __init__(self, seed: int, nursery: trio.Nursery, num_peers: int, num_founders: int) -> None:
        self.seed = seed
        self.chooser = random.Random(seed)
        self.nursery = nursery
        self.verifier = HashVerifier()
        self.swarm = MemorySwarm(nursery, random.Random(seed + 1), LinkSpeed(0.02, 1_000_000.0))
        self.trace = Trace()
        self.observed = Observed()
        self.nodes = [
            Node(self, number, TOKENS_PER_S * self.chooser.choice((0.5, 1.0, 2.0))) for number in range(num_peers)
        ]
        founders = tuple(sorted(node.peer for node in self.nodes[:num_founders]))
        zeros = torch.zeros(GRID.num_elements, dtype=torch.float32)
        draft = UnitState(UNIT, CommitId(bytes(32)), 0, 0, zeros, zeros.clone())
        unit = StartUnit(UNIT, bytes(32), state_root(draft, GRID))
        self.target_tokens = int(TOKENS_PER_S * num_founders * 5)
        self.start_record = encode_body(StartRecord(RUN_ID, (unit,), founders, self.target_tokens, 0))
        self.genesis = UnitState(UNIT, genesis_id(self.start_record), 0, 0, zeros, zeros.clone())

    def round_config(self, me: Member) -> RoundConfig:
        """The run's rounds for one member."""
        return RoundConfig(
            run_id=RUN_ID,
            unit=UNIT,
            me=me,
            verifier=self.verifier,
            num_chunks=GRID.num_chunks,
            codec="int8",
            outer=OuterStep("nesterov", 0.7, 0.5),
            target_tokens=self.target_tokens,
            min_members=1,
            max_members=16,
            longest_interval_s=30.0,
        )

    def boot(self, node: Node) -> None:
        """Start a process."""
        self.trace.add(f"{node.peer} starts")
        self.nursery.start_soon(node.live)

    async def wait_for(self, is_true: object, within_s: float, what: str) -> None:
        """Until a condition on the world holds, in virtual time."""
        with trio.move_on_after(within_s):
            while not is_true():  # type: ignore[operator]
                await trio.sleep(0.5)
            return
        states = [(n.peer[-4:], n.is_up, n.index, n.service.reason if n.service else "") for n in self.nodes]
        raise AssertionError(f"seed {self.seed}: {what} did not happen within {within_s} virtual seconds: {states}")


@dataclass(frozen=True)
class Outcome:
    """What a simulation says at its end."""

    seed: int
    rounds: int
    trace: str
    virtual_s: float


async def _story(seed: int, num_rounds: int) -> Outcome:
    async with trio.open_nursery() as nursery:
        chooser = random.Random(seed * 7919 + 13)
        num_peers = chooser.randint(4, 6)
        world = World(seed, nursery, num_peers, num_founders=num_peers - 1)
        for node in world.nodes[:-1]:
            world.boot(node)
        nursery.start_soon(_trouble, world, chooser)
        await world.wait_for(lambda: max(n.index for n in world.nodes) >= num_rounds, 1200.0, f"{num_rounds} rounds")
        target = max(node.index for node in world.nodes)
        live = [node for node in world.nodes if node.is_up]
        await world.wait_for(lambda: all(n.index >= target for n in live if n.is_up), 300.0, "catching up")
        outcome = Outcome(seed, target, world.trace.digest(), trio.current_time())
        nursery.cancel_scope.cancel()
    return outcome


async def _trouble(world: World, chooser: random.Random) -> None:
    """One late joiner, one crash with restart, one more crash, at times drawn from the seed; never half of the swarm at once."""
    await trio.sleep(chooser.uniform(0.0, 20.0))
    world.boot(world.nodes[-1])
    for _ in range(2):
        await trio.sleep(chooser.uniform(0.5, 15.0))
        victim = chooser.choice(world.nodes[:-1])
        victim.crash()
        await trio.sleep(chooser.uniform(0.2, 15.0))
        world.boot(victim)
        await trio.sleep(10.0)


def simulate(seed: int, num_rounds: int = 6) -> Outcome:
    """Run one seeded swarm to its end; raises AssertionError with the seed when an invariant breaks."""
    make_trio_deterministic(seed)
    return trio.run(_story, seed, num_rounds, clock=trio.testing.MockClock(autojump_threshold=0))


def make_trio_deterministic(seed: int) -> None:
    """trio shuffles its run queue with a generator of its own; works in the pinned version."""
    from trio._core import _run

    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r.seed(seed)
