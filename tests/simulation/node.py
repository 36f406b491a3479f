"""One simulated peer over its process lives: production services on the in-memory seams, and what can befall them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
import trio

from averaging.network.memory.memory_network import MemoryNetwork
from averaging.network.seams.clocks import Timers
from averaging.network.seams.interfaces import DirectoryEntry, TrafficCount
from averaging.rounds.exchange import exchange_driver as exchanging
from averaging.rounds.external_reducer import UnitShape
from averaging.rounds.head_vector import HeadVector
from averaging.rounds.lineage.head_state import AppliedCommit, BeginShift
from averaging.rounds.lineage.round_context import AuditContext, HostWord, RoundContext
from averaging.rounds.lineage.round_reports import Contributed, HeadsMoved, RoundCommitted, RoundReport, SumConvicted
from averaging.rounds.lineage.unit_chain import PreparedSwitch, UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.peer_rounds import PeerContext, PeerRounds
from averaging.rounds.spine_follower import SpineFollower
from averaging.rounds.traffic.directory_keys import DirectoryKeys
from averaging.rounds.traffic.discovery import DirectoryPoller, Rhythm, announce, list_peers
from averaging.rounds.traffic.transfer import FETCH_CHANNEL
from averaging.rounds.unit_service import RoundService
from averaging.state.generations import Generations
from averaging.state.proof_files import ProofFiles
from averaging.state.state import UnitState
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryStorage
from peer.holdings.host_backup import take_kept
from peer.membership.credential_cache import CredentialCache
from peer.status.health import HealthNotes
from protocol.errors import PotluckError
from protocol.identity.envelope import seal
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.messages import Certificate, Member
from protocol.rounds.state import OpenRound
from tests.simulation.bad_donor import Donor
from tests.simulation.credentials import Standing, own_record
from tests.simulation.disk import BoundedDisk, SlotBuffer, check_log, check_unit, room_of
from tests.simulation.full_disk import check_reported_vote
from tests.simulation.host import BanBook
from tests.simulation.invariants import Observed, Violation, check_applied_bytes
from tests.simulation.lives import Lives
from tests.simulation.owed import Owed, WatchedFeedback
from tests.simulation.signing import HashSigner, admission_of
from tests.simulation.trainer import SimulatedTrainer, Switch
from tests.simulation.virtual_time import PROCESS, Process
from tests.virtual import VirtualClock

if TYPE_CHECKING:
    from tests.simulation.swarm import World

T = TypeVar("T")
MESSAGE_LIFE_S = 300.0
TIDY_WITHIN_S = 60.0
"""A commit's generation is written and its log tidied beside the next round."""
_ROTTING = ("generations/", "results/", "feedback/")

setattr(exchanging, "GROWS_FROM_ELEMENTS", 1)  # noqa: B010 - a constant; short vectors leave as long ones do here


class SimulatedOffload:
    """Runs functions at once and lets virtual time pass."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """The function's result, `cost_s` of virtual time later."""
        if cost_s > 0:
            await self._timers.sleep(cost_s)
        return function()


class SettableClock(VirtualClock):
    """A wall clock that somebody sets; it asks the world's timers for the time, which is a few steps nearer than trio."""

    def __init__(self, timers: Timers, skew_s: float) -> None:
        super().__init__(skew_s=skew_s)
        self._timers = timers

    def monotonic_s(self) -> float:
        """Virtual seconds."""
        return self._timers.now_s()

    def unix_s(self) -> float:
        """Virtual wall clock."""
        return self._offset_s + self._timers.now_s()

    def jump(self, seconds: float) -> None:
        """Forwards, or back where negative."""
        self._offset_s += seconds


class WatchedChain(UnitChain):
    """A chain whose every commit is looked at as it is applied."""

    world: World
    node: Node

    @property
    def num_kept_votes(self) -> int:
        """So few that votes are dropped in runs as short as these."""
        return 3

    @property
    def observed(self) -> Observed:
        """The observations of this unit."""
        return self.world.observed_of[self.tools.unit]

    async def restore(self) -> OpenRound:
        """Commits that were applied before a crash are there after it, whatever was lost with the process."""
        open_round = await super().restore()
        before = self.node.applied.get(self.tools.unit)
        if before is not None and not self.node.is_disk_damaged and self._is_behind(before):
            raise Violation(f"{self.node.name} came back without commit {before.hex()[:8]}, which it had applied")
        return open_round

    def _is_behind(self, before: CommitId) -> bool:
        """Whether commits up to `before` are gone from the lineage that it is on; another lineage is a switch that was finished."""
        here: CommitId | None = before if before != self.head.commit else None
        while here in self.observed.commits:
            here = self.observed.commits[here].parent
            if here == self.head.commit:
                return True
        return False

    async def _flip(self, prepared: PreparedSwitch) -> OpenRound:
        """Tell the trainer which tokens come back, and look at where it leads."""
        commits, unit = [link.commit for link in self.links], self.tools.unit
        lost = self.links[commits.index(prepared.fork) + 1 :]
        self._expect(prepared, lost)
        open_round = await super()._flip(prepared)
        self.look()
        self.world.happened("switch", f"{self.node.name} {unit} from {len(lost)} to {len(prepared.path)} commits")
        return open_round

    def _expect(self, prepared: PreparedSwitch, lost: Sequence[ChainLink]) -> None:
        """Before anything is written: a process that dies in the middle must not have lost what was on its way to its trainer."""
        unit, me, observed = self.tools.unit, self.node.peer, self.observed
        trainer, lives = self.node.trainers.get(unit), self.node.lives[unit]
        observed.add([*self.links[: len(self.links) - len(lost)], *(node.link for node in prepared.path)])
        if trainer is None:
            return
        lives.leave_lineage(self.node.applied[unit])
        regained = [part for link in lost for part in observed.commits[link.commit].counted.get(me, [])]
        path = [observed.commits[node.link.commit] for node in prepared.path]
        spent = [part for known in path for part in known.counted.get(me, [])]
        entries = [(known.parent, known.record.contributor(me)) for known in path]
        offers = [(base, entry.root) for base, entry in entries if entry is not None]
        has_fork = prepared.fork_anchor_N is not None
        is_rewind = bool(lost) and prepared.path[0].link.rewind > 0
        switch = Switch(prepared.state.anchor_N, regained, spent, has_fork, lives.has_offers(offers), is_rewind)
        trainer.expect_switch(switch)

    async def apply(
        self, link: ChainLink, certificate: Certificate, begin_shift: BeginShift | None = None
    ) -> AppliedCommit:
        """The applied bytes are those that the record names; look at the state after it."""
        record, log, tools = link.record, self.tools.log, self.tools
        parts = record.slices if record is not None else ()
        blobs = [await log.read_result(record.parent, part.result_hash) for part in parts] if record is not None else []
        before_N = self.state.anchor_N.clone()
        applied = await super().apply(link, certificate, begin_shift)
        if tools.unit in self.node.owed:
            self.node.owed[tools.unit].applied(link.commit, before_N, applied.state.anchor_N.clone())
        if record is not None:
            check_applied_bytes(record, blobs, tools.result_codec, tools.grid)
        self.look()
        return applied

    async def prove(self, applied: AppliedCommit) -> Root:
        """Look at the state once more, now that its root is known."""
        root = await super().prove(applied)
        self.look()
        return root

    async def replace_state(self, state: UnitState) -> torch.Tensor | None:
        """A result that is made again must be right."""
        shift_N = await super().replace_state(state)
        self.node.is_rotten = False
        self.look()
        self.world.happened("healing", self.node.name)
        return shift_N

    def look(self) -> None:
        """Its head; a rotten state is no reference."""
        head, root = self.state.head, self.root if self.rooted == self.state.head else None
        self.node.applied[self.tools.unit] = head
        is_rotten = self.node.is_rotten and self.tools.unit == self.node.units[0]
        if is_rotten and root is not None and self.observed.roots.get(head) == root:
            self.node.is_rotten = is_rotten = False
        self.observed.hold(self.links, head, None if is_rotten else root)


def _is_kept(service: RoundService) -> bool:
    return service.chain.is_kept


class Node:
    """One peer over its process lives."""

    def __init__(
        self, world: World, number: int, tokens_per_s: float, skew_s: float, older: Node | None = None
    ) -> None:
        self.world = world
        self.number = number
        self.name = f"n{number}" if older is None else f"{older.name}'"
        self.signer = HashSigner(f"{world.seed}/{number}".encode())
        self.disk = BoundedDisk(self.peer, self._check_disk, self._check_vote)
        self.tokens_per_s = tokens_per_s
        self.clock = SettableClock(world.swarm.timers, skew_s)
        self.session = 0 if older is None else older.session
        self.incarnation = 1 if older is None else older.incarnation + 1
        self.is_replaced = False
        """Whether its identity was started on another machine since."""
        self.is_inbound_reachable = True
        self.kept_by: PeerId | None = None
        """The peers that it asks for data that no present peer holds, if a story is about that."""

        self.process = Process()
        self.units = world.layout.held(number)
        self.services: dict[UnitName, RoundService] = {}
        self.trainers: dict[UnitName, SimulatedTrainer] = {}
        before = older.lives if older is not None else {}
        self.lives = {unit: Lives(self.peer, world.observed_of[unit], before.get(unit)) for unit in self.units}
        self.follower: SpineFollower | None = None
        self.is_up = False
        self.has_left = False
        self.is_rotten = False
        self.is_disk_damaged = False
        self.donor = Donor()
        self.trouble = HealthNotes()
        """The messages of this process to its owner."""

        self.has_credential = False
        """Whether the host ever admitted it; that stays on its disk, as its book of bans does."""

        self.ban_book = BanBook()
        self.bans: set[PeerId] = set()
        """The peers that the entries of its book name."""

        self.hold: Hold | None = None
        """The host's hold that is on its disk."""

        self.roster: CredentialCache | None = None
        """The peers that have shown a credential, if a story is about that; otherwise everybody is a member."""

        self.standing = Standing(self, world.authority) if world.authority is not None else None
        """Its credential over all process lives, where the profile asks for that."""

        self.applied: dict[UnitName, CommitId] = {}
        """The last head of each unit, in any process life."""

        self._rooms: dict[UnitName, SlotBuffer] = {}
        self.owed: dict[UnitName, Owed] = {}
        """The debt of each unit of this process to the run, with error feedback."""

        self._network: MemoryNetwork | None = None
        self._scope: trio.CancelScope | None = None
        self._must_leave = trio.Event()

    @property
    def peer(self) -> PeerId:
        """Its id."""
        return self.signer.peer_id

    @property
    def service(self) -> RoundService | None:
        """The rounds of its first unit: of the spine, where it holds that."""
        return self.services.get(self.units[0])

    @property
    def trainer(self) -> SimulatedTrainer | None:
        """The training of its first unit."""
        return self.trainers.get(self.units[0])

    @property
    def head(self) -> CommitId | None:
        """The head of its first unit."""
        return self.head_of(self.units[0])

    @property
    def index(self) -> int:
        """Commits applied to its first unit."""
        return self.index_of(self.units[0])

    @property
    def traffic(self) -> TrafficCount:
        """The bytes that this process has sent and received so far."""
        return TrafficCount(0, 0, 0, 0) if self._network is None else self._network.traffic()

    def head_of(self, unit: UnitName) -> CommitId | None:
        """The head of a unit: applied, and taken over by its trainer and its round machine."""
        service = self.services.get(unit)
        if not self.is_up or service is None or not service.has_adopted:
            return None
        return service.chain.state.head

    def index_of(self, unit: UnitName) -> int:
        """Commits of a unit applied; of the spine, where it is only followed, commits known."""
        service = self.services.get(unit)
        if service is not None:
            return service.chain.head.index
        follows = self.follower is not None and unit == self.follower.unit
        return self.follower.view.link.index if follows and self.follower is not None else 0

    async def live(self) -> None:
        """One process life, until it is killed or has left."""
        self.session += 1
        self.process = process = Process()
        PROCESS.set(process)
        self._must_leave = trio.Event()
        self.trouble = HealthNotes()
        self.disk.power_on()
        try:
            with trio.CancelScope() as scope:
                self._scope = scope
                self.is_up = True
                await self._serve(process)
        except* PotluckError as group:
            if self.peer in self.world.liars:
                self._fails(group)
            elif process.is_alive:
                raise AssertionError(f"{self.name} died of {group.exceptions}") from group
        except* Exception as group:
            if self.peer not in self.world.liars:
                raise
            self._fails(group)
        if self.process is process:
            self.is_up = False

    def _fails(self, group: BaseExceptionGroup[Exception]) -> None:
        """A liar's node comes upon its own lies."""
        self._end(f"fails over its own lies: {group.exceptions[0]!r}", is_killed=True)

    async def _serve(self, process: Process) -> None:
        world = self.world
        network = self._network = world.swarm.start(self.peer, is_elsewhere=self.incarnation > 1)
        sequence = iter(range(self.session << 32, (self.session + 1) << 32))

        async def sealed(payload: bytes) -> bytes:
            process.check_alive()
            if world.liars and payload.startswith((b"potluck claim", b"potluck sum")):
                world.facts.signed.add((self.peer, payload))
            if self.disk.is_full:
                check_reported_vote(self.name, self.disk, payload, world.layout.spine)
            expires_ms = int((self.clock.unix_s() + MESSAGE_LIFE_S) * 1000)
            return seal(self.signer, ROUND_DOMAIN, world.run_id, next(sequence), expires_ms, payload)

        if self.standing is not None:
            self.roster = self.standing.begin()
        reported = partial(self._reported, process)
        tools = PeerContext(network, self.clock, sealed, self._is_member, reported, self.bans.__contains__)
        rounds = await self._rounds(process, tools)
        rounds.serve()
        make_record, used = _no_value, self.roster
        if used is not None:
            used.serve(network)
            if self.standing is not None:
                make_record = own_record(self, used, network, sequence.__next__)
        network.serve_streams(FETCH_CHANNEL, self.donor.wrap(rounds.serve_fetch))

        async def listed(entries: Sequence[DirectoryEntry]) -> None:
            peers = tuple(PeerId(entry.subkey) for entry in entries)
            await rounds.list_peers(used.take_records(entries) if self.standing is not None and used else peers)

        async with trio.open_nursery() as nursery:
            poller = DirectoryPoller(network, DirectoryKeys(world.run_id), 0.0)
            nursery.start_soon(announce, poller, self.clock, make_record)
            often_s, rarely_s = world.profile.list_every_s, world.profile.settled_list_every_s
            nursery.start_soon(list_peers, poller, listed, Rhythm(often_s, rarely_s))
            nursery.start_soon(self._leave_when_asked, rounds)
            if self.standing is not None and used is not None:
                nursery.start_soon(self.standing.keep, used)
            await rounds.run()

    async def _rounds(self, process: Process, tools: PeerContext) -> PeerRounds:
        """All units, restored from the disk."""
        world, storage = self.world, self._storage("")
        vector, spine = HeadVector(storage), world.layout.spine
        limits = world.profile.log_limits
        logs = {unit: UnitLog(self._storage(self._folder(unit)), limits) for unit in (*self.units, spine)}
        self.follower, self.services, self.trainers = None, {}, {}
        await vector.finish(logs)
        if spine not in self.units:
            self.follower = SpineFollower(
                spine, world.start_record, logs[spine], tools.network, world.verifier, world.run_id
            )
            await self.follower.restore()
        rounds = PeerRounds(world.run_id, world.verifier, tools, vector, self.follower)
        shape = UnitShape(world.codec, world.grid, world.profile.longest_interval_s, world.results, world.profile.sums)
        me, offload = Member(self.peer, self.incarnation, self.session), SimulatedOffload(world.swarm.timers)
        admission = partial(admission_of, self.peer, world.run_id)
        rounds.lend(me, offload, dict.fromkeys(world.layout.units, shape), admission)
        for unit in self.units:
            rounds.add(await self._unit(process, tools, rounds, unit, logs[unit]))
        return rounds

    async def _unit(
        self, process: Process, tools: PeerContext, rounds: PeerRounds, unit: UnitName, log: UnitLog
    ) -> RoundService:
        world = self.world
        chain = self._chain(unit, log)
        open_round = await chain.restore()
        if self.kept_by is not None and await take_kept(tools.network, chain, self.kept_by):
            open_round = await chain.votes_on_head()
        if isinstance(chain, WatchedChain):
            chain.look()
        first_step = chain.data_position()
        trainer = SimulatedTrainer(
            world.grid.num_elements,
            self.tokens_per_s,
            first_step,
            process,
            world.swarm.timers,
            life=self.session,
            costs=world.profile.costs,
            owed=self.owed.get(unit),
        )
        await trainer.load(chain.state.anchor_N, schedule_tokens=chain.head.total_tokens)
        if self.peer not in world.liars:
            self.lives[unit].begin(trainer)
        me = Member(self.peer, self.incarnation, self.session)
        config = replace(world.round_config(me, unit), is_inbound_reachable=self.is_inbound_reachable)
        publish = partial(self._published, process, unit)
        mixing = world.profile.mixing
        admission = partial(admission_of, self.peer, world.run_id)
        clock, work = self.clock, chain.tools.offload
        round_tools = RoundContext(
            tools.network,
            clock,
            work,
            trainer,
            tools.seal,
            publish,
            mixing,
            credential=admission,
            host_word=HostWord(hold=lambda: self.hold),
            audits=AuditContext(
                random.Random(f"audits {world.seed}/{self.number}/{self.session}").random,
                ProofFiles(self._storage(self._folder(unit))),
            ),
        )
        service = RoundService(config, chain, open_round, round_tools, rounds)
        self._rooms[unit] = room_of(chain)
        self.services[unit], self.trainers[unit] = service, trainer
        return service

    def _storage(self, folder: str) -> MemoryStorage:
        return MemoryStorage(self.disk, folder, timers=self.world.swarm.timers)

    def _folder(self, unit: UnitName) -> str:
        return "" if unit == self.world.layout.spine else unit

    def _check_disk(self) -> None:
        for unit, service in self.services.items():
            log = service.chain.tools.log
            check_unit(self.name, self.disk, self._folder(unit) and f"{unit}/", log, self._rooms[unit])

    def _check_vote(self, folder: str, base: CommitId) -> None:
        unit = UnitName(folder) if folder else self.world.layout.spine
        if unit in self.units:
            self.world.observed_of[unit].check_vote(self.peer, base, self.incarnation)

    async def check_disk(self) -> None:
        """Raises Violation where anything takes more of the disk than it may."""
        self._check_disk()
        for unit, service in self.services.items():
            folder = self._folder(unit) and f"{unit}/"
            await self.world.wait_for(partial(_is_kept, service), TIDY_WITHIN_S, f"the log of {self.name} written anew")
            await check_log(self.name, self.disk, folder, service.chain, self.world.profile.log_limits)

    def _chain(self, unit: UnitName, log: UnitLog) -> UnitChain:
        world = self.world
        offload = SimulatedOffload(world.swarm.timers)
        generations = Generations(self._storage(self._folder(unit)), world.grid, offload)
        feedback = self._feedback(unit, offload)
        tools = UnitContext(
            world.run_id,
            unit,
            world.verifier,
            world.codec,
            world.grid,
            offload,
            log,
            generations,
            feedback,
            world.results,
            world.profile.small_state_bytes,
        )
        if self.peer in world.liars:
            return UnitChain(tools, world.start_record, world.genesis(unit))
        chain = WatchedChain(tools, world.start_record, world.genesis(unit))
        chain.world, chain.node = world, self
        return chain

    def _feedback(self, unit: UnitName, offload: SimulatedOffload) -> WatchedFeedback | None:
        world, beta = self.world, self.world.profile.error_feedback
        if not beta:
            return None
        feedback = WatchedFeedback(self.peer, beta, world.grid, self._storage(self._folder(unit)), offload)
        has_mixed = partial(world.happened, "mixed", f"{self.name} {unit}")
        self.owed[unit] = Owed(self.peer, feedback, world.codec, world.grid, world.profile.mixing, has_mixed)
        return feedback

    def _reported(self, process: Process, report: RoundReport) -> None:
        if process.is_alive:
            self.trouble.take(report, self.clock.monotonic_s())
            self.world.trace.add(f"{self.name} {_in_short(report)}")
            if isinstance(report, HeadsMoved):
                self.world.happened("vector", f"{self.name} {report.units}")

    def _published(self, process: Process, unit: UnitName, report: RoundReport) -> None:
        if not process.is_alive:
            return
        self.trouble.take(report, self.clock.monotonic_s())
        name = self.name if unit == self.world.layout.spine else f"{self.name}/{unit}"
        self.world.trace.add(f"{name} {_in_short(report)}")
        if isinstance(report, Contributed) and self.peer not in self.world.liars:
            base = self.services[unit].chain.head.commit
            self.lives[unit].tell(base, report.root, self.trainers[unit].last_snapshot)
            if unit in self.owed:
                self.world.observed_of[unit].sources[self.peer, base, report.root] = self.owed[unit].sources()
        if isinstance(report, SumConvicted):
            self._note_conviction(report)
        if isinstance(report, RoundCommitted):
            self.world.trace.add(f"{name} commit {report.link.index} {report.link.commit.hex()}")

    def _note_conviction(self, report: SumConvicted) -> None:
        """A proof convicts nobody who is honest, whoever shows it."""
        reducer = report.notice.reducer
        if reducer not in self.world.liars:
            raise Violation(f"{self.name} has a proof that an honest reducer {report.words}")
        if reducer not in self.world.convicted:
            self.world.convicted.add(reducer)
            self.world.happened("conviction", reducer)

    async def _is_member(self, peer: PeerId) -> bool:
        return peer not in self.bans and (self.roster is None or await self.roster.is_member(peer))

    async def _leave_when_asked(self, rounds: PeerRounds) -> None:
        await self._must_leave.wait()
        await rounds.leave()
        self.has_left = True
        self._end("has left", is_killed=False)

    def leave(self) -> None:
        """Ask for a graceful end."""
        self._must_leave.set()

    def crash(self) -> None:
        """kill -9: from this instant its network, its disk and its trainer refuse everything."""
        self.disk.crash(self.world.chooser)
        self._end("crashes", is_killed=True)

    def _end(self, how: str, *, is_killed: bool) -> None:
        if not self.is_up or self._scope is None:
            return
        self.world.trace.add(f"{self.name} {how}")
        for unit, lives in self.lives.items():
            if unit in self.applied:
                lives.end(self.applied[unit], is_killed=is_killed)
        self.is_up = False
        if self._network is not None:
            self.world.swarm.end(self._network)
        self.process.kill()
        self._scope.cancel()

    def close(self, error: PotluckError) -> None:
        """It hears of a newer process of its identity, and ends as any process does whose error nobody handles: without a goodbye."""
        self._end(f"ends: {error.one_line()}", is_killed=True)

    def rot(self, chooser: random.Random) -> None:
        """A bit of its state flips in memory, unnoticed."""
        if self.service is not None:
            chain = self.service.chain
            anchor_N = chain.state.anchor_N.clone()
            anchor_N[chooser.randrange(anchor_N.numel())] += 0.25
            chain.held.stand_at(replace(chain.state, anchor_N=anchor_N))
            self.is_rotten = True

    def damage_disk(self, chooser: random.Random) -> str:
        """A bit of a state, an update or a residual flips on its disk; returns which file's, "" where there is none."""
        names = sorted(name for name in self.disk.files if any(kind in name for kind in _ROTTING))
        if not names:
            return ""
        name = chooser.choice(names)
        data = bytearray(self.disk.files[name])
        data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        self.disk.files[name] = bytes(data)
        self.is_disk_damaged = True
        return name

    def freeze(self) -> None:
        """SIGSTOP of the whole node."""
        self.world.trace.add(f"{self.name} freezes")
        self.world.swarm.freeze(self.peer)
        self.process.freeze()

    def thaw(self) -> None:
        """SIGCONT: its inbox is full and its clock has moved on."""
        if not self.process.is_frozen:
            return
        self.world.trace.add(f"{self.name} thaws")
        self.world.swarm.thaw(self.peer)
        self.process.thaw()

    def jump_clock(self, seconds: float) -> None:
        """Its wall clock is set, forwards or back."""
        self.world.trace.add(f"{self.name} sets its clock by {seconds:.0f} s")
        self.clock.jump(seconds)


async def _no_value(expires_unix_s: float) -> bytes:
    return b""


def _in_short(report: RoundReport) -> str:
    return f"{type(report).__name__} {getattr(report, 'reason', '')}"
