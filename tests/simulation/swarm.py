"""A whole swarm in virtual time from one seed: production cores and services on the in-memory seams."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from hashlib import sha256

import torch
import trio

from averaging.codecs import codec_by_name
from averaging.network.memory_network import LinkSpeed, MemorySwarm
from averaging.state import UnitState, state_root
from protocol.ids import CommitId, RunId, UnitName
from protocol.rounds.messages import MAX_MEMBERS, Member, OuterStep, StartRecord, StartUnit
from protocol.rounds.state import RoundConfig
from protocol.tensor_schema import ChunkGrid
from protocol.wire import encode_body, genesis_id
from tests.simulation import virtual_time
from tests.simulation.invariants import Observed, Violation
from tests.simulation.node import Node
from tests.simulation.profiles import Profile
from tests.simulation.signing import HashVerifier

UNIT = UnitName("fragment-0")
RUN_ID = RunId(sha256(b"simulated run").digest())
NUM_CHUNKS = 8
CODEC = codec_by_name("int8")
SPEEDS = (0.5, 1.0, 2.0)
MAX_SKEW_S = 60.0
POLL_S = 0.25


class Trace:
    """What happened, in order; its hash says whether two simulations were the same."""

    def __init__(self) -> None:
        self._hash = sha256()
        self.lines: list[str] | None = None
        """Kept only where somebody set a list."""

    def add(self, line: str) -> None:
        """One line at the current virtual time."""
        timed = f"{trio.current_time():.6f} {line}\n"
        self._hash.update(timed.encode())
        if self.lines is not None:
            self.lines.append(timed)

    def digest(self) -> str:
        """Hash of all lines."""
        return self._hash.hexdigest()


class World:
    """The swarm, its trace and its invariants."""

    run_id = RUN_ID
    unit = UNIT
    codec = CODEC

    def __init__(
        self, seed: int, nursery: trio.Nursery, num_peers: int, num_founders: int, profile: Profile | None = None
    ) -> None:
        self.seed = seed
        self.profile = profile or Profile("calm")
        self.grid = ChunkGrid(self.profile.num_elements, self.profile.num_elements // NUM_CHUNKS)
        self.chooser = random.Random(f"world {seed}")
        self.nursery = nursery
        self.verifier = HashVerifier()
        chooser, speed = random.Random(f"network {seed}"), LinkSpeed(0.02, 1_000_000.0)
        self.swarm = MemorySwarm(nursery, chooser, speed, timers=virtual_time.driven_timers())
        self.trace = Trace()
        self.observed = Observed()
        self.faults: Counter[str] = Counter()
        self.turnover: list[float] = []
        """Share of the peers that went, and of as many that came, between two rounds."""

        self.nodes: list[Node] = []
        for _ in range(num_peers):
            self.add_node()
        founders = tuple(sorted(node.peer for node in self.nodes[: min(num_founders, MAX_MEMBERS)]))
        zeros = torch.zeros(self.grid.num_elements, dtype=torch.float32)
        draft = UnitState(UNIT, CommitId(bytes(32)), 0, 0, zeros, zeros.clone())
        unit = StartUnit(UNIT, bytes(32), state_root(draft, self.grid))
        self.target_tokens = int(self.profile.tokens_per_s * num_founders * self.profile.round_s)
        self.start_record = encode_body(StartRecord(RUN_ID, (unit,), founders, self.target_tokens, 0))
        self.genesis = UnitState(UNIT, genesis_id(self.start_record), 0, 0, zeros, zeros.clone())

    def add_node(self) -> Node:
        """One more peer, not running yet."""
        skew_s = 0.0
        if self.profile.has_skew and self.chooser.random() < 0.5:
            skew_s = self.chooser.uniform(-MAX_SKEW_S, MAX_SKEW_S)
            self.faults["clock skew"] += 1
        speed = self.profile.tokens_per_s * self.chooser.choice(SPEEDS)
        node = Node(self, len(self.nodes), speed, skew_s)
        self.nodes.append(node)
        return node

    def round_config(self, me: Member) -> RoundConfig:
        """The run's rounds for one member."""
        return RoundConfig(
            run_id=RUN_ID,
            unit=UNIT,
            me=me,
            verifier=self.verifier,
            num_chunks=self.grid.num_chunks,
            codec=CODEC.name,
            outer=OuterStep("nesterov", 0.7, 0.5),
            target_tokens=self.target_tokens,
            min_members=1,
            max_members=MAX_MEMBERS,
            longest_interval_s=self.profile.longest_interval_s,
            heartbeat_s=self.profile.heartbeat_s,
            lone_patience_s=max(60.0, self.profile.longest_interval_s),
        )

    def boot(self, node: Node) -> None:
        """Start a process."""
        self.trace.add(f"{node.name} starts")
        node.is_up = True
        node.has_left = False
        self.nursery.start_soon(node.live)

    def happened(self, fault: str, what: str = "") -> None:
        """Count a fault."""
        self.faults[fault] += 1
        self.trace.add(f"fault {fault} {what}")

    def live_nodes(self) -> list[Node]:
        """Nodes whose process runs, frozen or not."""
        return [node for node in self.nodes if node.is_up]

    def rounds(self) -> int:
        """Commits on the longest chain that anybody holds."""
        return max(node.index for node in self.nodes)

    def describe(self) -> str:
        """One word per node on where it stands."""
        return "; ".join(
            f"{n.name} {'up' if n.is_up else 'down'} {n.index} {n.head.hex()[:6] if n.head else '-'}"
            f" {n.service.reason if n.service else ''!r}"
            for n in self.nodes
        )

    async def wait_for(self, is_true: Callable[[], bool], within_s: float, what: str) -> None:
        """Until a condition on the world holds, in virtual time."""
        deadline_s = trio.current_time() + within_s
        while not is_true():
            if trio.current_time() >= deadline_s:
                raise Violation(f"{what} did not happen within {within_s:.0f} virtual seconds: {self.describe()}")
            await self.swarm.timers.sleep(POLL_S)
