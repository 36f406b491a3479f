"""A whole swarm in virtual time from one seed: production cores and services on the in-memory seams."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256

import torch
import trio

from averaging.codecs import codec_by_name
from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.state.state import UnitState, state_root
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.bounds import MAX_MEMBERS
from protocol.rounds.messages.messages import Member, RoundMessage
from protocol.rounds.messages.record import OuterStep
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import encode_body, genesis_id
from protocol.rounds.schedule.stagger import Stagger
from protocol.rounds.schedule.target import RoundTarget
from protocol.rounds.state import RoundConfig
from protocol.tensors.tensor_schema import ChunkGrid
from tests.simulation import virtual_time
from tests.simulation.credentials import Authority
from tests.simulation.facts import Facts
from tests.simulation.host import Host
from tests.simulation.invariants import KnownCommit, Observed, Violation
from tests.simulation.liars import Liar, draw_liars
from tests.simulation.node import Node
from tests.simulation.profiles import Profile
from tests.simulation.seeds import has_way_in
from tests.simulation.signing import HashVerifier

RUN_ID = RunId(sha256(b"simulated run").digest())
NUM_CHUNKS = 8
SPEEDS = (0.5, 1.0, 2.0)
MAX_SKEW_S = 60.0
POLL_S = 0.25
STAGGER = 0.15


class Trace:
    """The events, in order; its hash says whether two simulations were the same."""

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

    def __init__(
        self, seed: int, nursery: trio.Nursery, num_peers: int, num_founders: int, profile: Profile | None = None
    ) -> None:
        self.seed = seed
        self.profile = profile or Profile("calm")
        self.num_peers = num_peers
        self.layout = self.profile.layout
        self.codec = codec_by_name(self.profile.codec)
        self.results = codec_by_name(self.profile.result_codec) if self.profile.result_codec else None
        self.grid = ChunkGrid(self.profile.num_elements, self.profile.num_elements // NUM_CHUNKS)
        self.chooser = random.Random(f"world {seed}")
        self.nursery = nursery
        self.verifier = HashVerifier()
        chooser, speed = random.Random(f"network {seed}"), LinkSpeed(0.02, 1_000_000.0)
        self.swarm = MemorySwarm(nursery, chooser, speed, timers=virtual_time.driven_timers())
        self.trace = Trace()
        self.observed_of = {unit: Observed() for unit in self.layout.units}
        self.faults: Counter[str] = Counter()
        self.turnover: list[float] = []
        """Share of the peers that went, and of as many that came, between two rounds."""

        self.tokens: Counter[str] = Counter()
        """The fate of all trained tokens at the end: lost ones by reason."""

        self.authority = Authority(self) if self.profile.has_credentials else None
        if self.authority is not None:
            self.swarm.has_way_in = partial(has_way_in, self)
        self.has_dead_seed = False
        """Whether a peer that others came in by is dead for good."""

        self.facts = Facts()
        self.liars: dict[PeerId, Liar] = {}
        self.convicted: set[PeerId] = set()
        """Reducers that a proof convicts of a false sum."""

        """Members that lie, where the profile asks for that; what follows is about the honest ones."""

        self.lies: Counter[str] = Counter()
        self.padded: dict[int, tuple[RoundMessage, int]] = {}
        """Messages of liars, by `id`, that get so many bytes of an unknown field."""

        self.looked_at: set[CommitId] = set()
        """Commits that an honest peer knows and that were held against the facts."""

        self.nodes: list[Node] = []
        self.older: list[Node] = []
        """The processes whose identity was started on another machine since; they are to end."""

        for _ in range(num_peers):
            self.add_node()
        founders = self.nodes[: min(num_founders, MAX_MEMBERS)]
        self.target_tokens = int(self.profile.tokens_per_s * num_founders * self.profile.round_s)
        roster = tuple(sorted(node.peer for node in founders))
        units = tuple(self._start_unit(unit, founders) for unit in self.layout.units)
        disks = tuple(1 for _ in roster)  # the first incarnation of each
        self.start_record = encode_body(StartRecord(RUN_ID, units, roster, self.target_tokens, 0, disks, NEW_RUNS))
        for part in units:
            observed = self.observed_of[part.unit]
            observed.start, observed.founders = genesis_id(self.start_record), part.roster or roster
        self.host = Host(self)
        if self.profile.has_liars:
            draw_liars(self)

    def _start_unit(self, unit: UnitName, founders: list[Node]) -> StartUnit:
        root = state_root(self._zeros(unit, CommitId(bytes(32))), self.grid)
        holders = tuple(sorted(node.peer for node in founders if unit in node.units))
        return StartUnit(unit, bytes(32), root, holders if len(self.layout.units) > 1 else ())

    def _zeros(self, unit: UnitName, commit: CommitId) -> UnitState:
        zeros = torch.zeros(self.grid.num_elements, dtype=torch.float32)
        return UnitState(unit, commit, 0, 0, zeros, zeros.clone())

    def genesis(self, unit: UnitName) -> UnitState:
        """A unit's first state."""
        return self._zeros(unit, genesis_id(self.start_record))

    @property
    def observed(self) -> Observed:
        """The observations of the spine."""
        return self.observed_of[self.layout.spine]

    def holders(self, unit: UnitName) -> list[Node]:
        """Live nodes that hold a unit, liars apart."""
        return [node for node in self.honest_nodes() if unit in node.units]

    def add_node(self) -> Node:
        """One more peer, not running yet."""
        skew_s = 0.0
        if self.profile.has_skew and self.chooser.random() < 0.5:
            skew_s = self.chooser.uniform(-MAX_SKEW_S, MAX_SKEW_S)
            self.faults["clock skew"] += 1
        speed = self.profile.tokens_per_s * self.chooser.choice(SPEEDS)
        node = Node(self, len(self.nodes), speed, skew_s)
        if self.profile.outbound:
            node.is_inbound_reachable = self.chooser.random() >= self.profile.outbound
        self.nodes.append(node)
        self.facts.admitted.add(node.peer)
        return node

    def start_elsewhere(self, older: Node) -> Node:
        """The peer's identity is started on another machine, with a disk of its own, while the older process goes on."""
        newer = Node(self, older.number, older.tokens_per_s, 0.0, older)
        newer.is_inbound_reachable = older.is_inbound_reachable
        self.nodes[self.nodes.index(older)] = newer
        self.older.append(older)
        older.is_replaced = True
        for observed in self.observed_of.values():
            observed.had_two.add(older.peer)
        self.boot(newer)
        return newer

    def is_there(self, unit: UnitName, known: KnownCommit) -> bool:
        """Whether those who run have all bytes of this commit."""
        folder = "" if unit == self.layout.spine else f"{unit}/"
        names = [f"{folder}results/{known.parent.hex()}/{part.result_hash.hex()}" for part in known.record.slices]
        disks = [node.disk.files for node in self.live_nodes()]
        return all(any(name in files for files in disks) for name in names)

    def round_config(self, me: Member, unit: UnitName) -> RoundConfig:
        """The run's rounds for one member."""
        return RoundConfig(
            run_id=RUN_ID,
            unit=unit,
            me=me,
            verifier=self.verifier,
            num_chunks=self.grid.num_chunks,
            codec=self.profile.codec,
            result_codec=self.profile.result_codec,
            outer=OuterStep("nesterov", 0.7, 0.5),
            target=RoundTarget(self.target_tokens_of(unit)),
            min_members=1,
            max_members=MAX_MEMBERS,
            longest_interval_s=self.profile.longest_interval_s,
            heartbeat_s=self.profile.heartbeat_s,
            replay_at_most=self.profile.replay_at_most,
            lone_patience_s=max(60.0, self.profile.longest_interval_s),
            spine=None if unit == self.layout.spine else self.layout.spine,
            stagger=self._stagger(unit),
            sums=self.profile.sums,
        )

    def _stagger(self, unit: UnitName) -> Stagger:
        units = self.layout.units
        return Stagger(units.index(unit), len(units)) if self.profile.mixing is not None else Stagger()

    def target_tokens_of(self, unit: UnitName) -> int:
        """A little more for each unit, so that their rounds drift past each other; the same where they are staggered."""
        if self.profile.mixing is not None:
            return self.target_tokens
        place = self.layout.units.index(unit)
        return int(self.target_tokens * (1.0 + STAGGER * place))

    def boot(self, node: Node) -> None:
        """Start a process, once the host admits its peer; it never does after a ban. Nobody comes back to a machine that was left,
        nor starts on a disk that has no room for the number of its session.
        """
        if node.is_replaced or node.disk.is_full or not self.host.admits(node):
            return
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

    def honest_nodes(self) -> list[Node]:
        """Nodes whose process runs and that do not lie."""
        return [node for node in self.live_nodes() if node.peer not in self.liars]

    def has_room(self) -> bool:
        """Whether one more may run: with turnover no more than by its share above those at the start."""
        turnover = self.profile.turnover
        return not turnover or len(self.live_nodes()) < self.num_peers * (1 + turnover)

    def rounds(self) -> int:
        """Commits on the longest chain of the spine that anybody holds."""
        spine = self.layout.spine
        return max(node.index_of(spine) for node in self.nodes if node.peer not in self.liars)

    def describe(self) -> str:
        """One word per node on where it stands."""
        return "; ".join(self._describe(node) for node in self.nodes)

    def _describe(self, node: Node) -> str:
        where = " ".join(
            f"{unit}:{service.chain.head.index}:{service.chain.head.commit.hex()[:6]} {service.reason!r}"
            for unit, service in sorted(node.services.items())
        )
        return f"{node.name} {'up' if node.is_up else 'down'} {where}"

    async def wait_for(self, is_true: Callable[[], bool], within_s: float, what: str) -> None:
        """Until a condition on the world holds, in virtual time."""
        deadline_s = trio.current_time() + within_s
        while not is_true():
            if trio.current_time() >= deadline_s:
                raise Violation(f"{what} did not happen within {within_s:.0f} virtual seconds: {self.describe()}")
            await self.swarm.timers.sleep(POLL_S * self.profile.heartbeat_s)
