"""Round services, and their parts alone, beside peers whose words the tests speak: what the tests of the services share."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

import torch
import trio

from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, NoPart, ReadAnchors, Snapshot, TrainerProgress
from averaging.rounds.beat_sender import BEAT_CHANNEL
from averaging.rounds.head_vector import HeadVector
from averaging.rounds.lineage.adoption import Mixing
from averaging.rounds.lineage.round_context import AuditContext, RoundContext, Tasks
from averaging.rounds.lineage.round_reports import RoundReport
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import PreparedSwitch
from averaging.rounds.lineage.unit_feedback import ErrorFeedback
from averaging.rounds.outbox import ROUND_CHANNEL
from averaging.rounds.peer_rounds import PeerContext, PeerRounds
from averaging.rounds.unit_service import RoundService
from averaging.state.proof_files import ProofFiles
from averaging.storage.memory_storage import MemoryStorage
from protocol.errors import LocalProtocolError, PotluckError
from protocol.identity.envelope import open_envelope
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds import machine as core
from protocol.rounds.events import Event
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import SpineView
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.heartbeat_delta import SAY_WHOLE
from protocol.rounds.messages.messages import Heartbeat, Promise, Proposal, RoundMessage, UnitHead
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_message, encode_message
from protocol.rounds.orders import SendHeartbeat
from protocol.rounds.schedule.sum_rules import DEFAULT_SUMS, SumRules
from protocol.rounds.schedule.target import RoundTarget
from protocol.rounds.state import OpenRound, PeerView, RoundConfig, RoundState
from tests.averaging.rounds.round_world import (
    GRID,
    OUTER,
    RUN_ID,
    TOKENS,
    UNIT,
    VERIFIER,
    Party,
    RoundWorld,
    open_world,
)
from tests.virtual import InlineOffload, VirtualClock

K = TypeVar("K")

NEVER_DUE = 1 << 40
"""A target that no trainer reaches within a test: nothing happens but what the test does."""


class StepTrainer:
    """Trains in virtual time: every 100 tokens a small step in a direction of its own."""

    STEP_TOKENS = 100

    def __init__(self, seed: str, tokens_per_s: float = 400.0) -> None:
        self._theta_N = torch.zeros(GRID.num_elements, dtype=torch.float32)
        self._random = random.Random(seed)
        self._tokens_per_s = tokens_per_s
        self._ready = 0
        self._trained = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(self.STEP_TOKENS / self._tokens_per_s)
            steps = [self._random.uniform(-0.01, 0.01) for _ in range(GRID.num_elements)]
            self._theta_N = torch.add(self._theta_N, torch.tensor(steps, dtype=torch.float32))
            self._ready += self.STEP_TOKENS
            self._trained += self.STEP_TOKENS

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        self._theta_N, self._ready = anchor_N.clone(), 0

    async def snapshot(self) -> Snapshot:
        await trio.sleep(self.STEP_TOKENS / self._tokens_per_s)
        steps = self.STEP_TOKENS
        return Snapshot(self._theta_N.clone(), self._ready, self._ready // steps, self._trained // steps)

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        self._theta_N = torch.add(self._theta_N, shift_N)
        self._ready -= credited_tokens

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Its worker never dies alone."""

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        return HeldoutLosses((0.0,))

    def progress(self) -> TrainerProgress:
        return TrainerProgress(self._ready, self._trained, 1.0, self._tokens_per_s, 0, "training", "")


class AwayTrainer(StepTrainer):
    """Trains, but gives no snapshot."""

    async def snapshot(self) -> Snapshot:
        raise LocalProtocolError("the worker is being brought back", "a snapshot")


class SpareTrainer(StepTrainer):
    """Was to bring nothing."""

    async def snapshot(self) -> Snapshot:
        raise NoPart("a spare", "nothing of it")


class PausedTrainer(StepTrainer):
    """Is paused by its owner: it answers, and has trained nothing."""

    async def snapshot(self) -> Snapshot:
        return replace(await super().snapshot(), tokens=0)


class StartingTrainer(StepTrainer):
    """Its training process is still importing what it needs until `ready` is set; orders wait for it."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.ready = trio.Event()

    async def snapshot(self) -> Snapshot:
        await self.ready.wait()
        return await super().snapshot()

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        await self.ready.wait()
        await super().shift(shift_N, credited_tokens=credited_tokens, schedule_tokens=schedule_tokens, kept=kept)

    def progress(self) -> TrainerProgress:
        return super().progress() if self.ready.is_set() else TrainerProgress(0, 0, None, 0.0, 0, "starting", "")


class SlowTrainer(StepTrainer):
    """Trains on for a while before it takes a shift."""

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        await trio.sleep(1.5)
        await super().shift(shift_N, credited_tokens=credited_tokens, schedule_tokens=schedule_tokens, kept=kept)


class HandTrainer:
    """Trains nothing by itself: a test says what is in theta, holds up commands and lets them fail.

    Attributes:
        done: the commands that took effect, in order.
        schedule: the tokens of the run that the last of them named.
    """

    def __init__(self, theta_N: torch.Tensor | None = None, tokens: int = TOKENS) -> None:
        self.theta_N = torch.zeros(GRID.num_elements) if theta_N is None else theta_N
        self.tokens = tokens
        self.next_step = 1
        self.num_readers = 1
        self.num_replicas = 1
        self.done: list[str] = []
        self.schedule = 0
        self.anchor_N = torch.zeros(GRID.num_elements)
        self.failing: dict[str, PotluckError] = {}
        self._held: dict[str, trio.Event] = {}
        self.answers_within_s = 0.0

    def hold(self, command: str) -> None:
        """These commands wait from now on."""
        self._held[command] = trio.Event()

    def let_go(self, command: str) -> None:
        """They take effect."""
        self._held.pop(command).set()

    async def _take(self, command: str) -> None:
        while command in self._held:
            await self._held[command].wait()
        if command in self.failing:
            raise self.failing[command]
        self.done.append(command)

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        await self._take("load")
        self.theta_N, self.tokens, self.schedule = anchor_N.clone(), 0, schedule_tokens

    async def snapshot(self) -> Snapshot:
        await self._take("snapshot")
        return Snapshot(self.theta_N.clone(), self.tokens, 1, self.next_step, num_readers=self.num_readers)

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        await self._take("shift")
        kept_N = self.theta_N.clone()
        for part in kept:
            kept_N[part.begin : part.stop] *= part.share
        self.theta_N = torch.add(kept_N, shift_N)
        self.tokens -= credited_tokens
        self.schedule = schedule_tokens

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        await self._take("set_anchor")
        self.anchor_N = anchor_N

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        return HeldoutLosses((0.0,))

    def progress(self) -> TrainerProgress:
        tokens, replicas = self.tokens, self.num_replicas
        return TrainerProgress(
            tokens,
            tokens,
            1.0,
            400.0,
            0,
            "training",
            "",
            num_replicas=replicas,
            answers_within_s=self.answers_within_s,
        )


def config_of(world: RoundWorld, party: Party) -> RoundConfig:
    """The run's rounds for one party."""
    return RoundConfig(
        run_id=RUN_ID,
        unit=UNIT,
        me=party.member,
        verifier=VERIFIER,
        num_chunks=world.grid.num_chunks,
        codec=world.codec.name,
        outer=OUTER,
        target=RoundTarget(world.target_tokens),
        min_members=1,
        max_members=8,
        longest_interval_s=3600.0,
    )


# --- parts of a service, alone ------------------------------------------------------------------------------------------------


class Bench:
    """The dependencies of a part of a service, with its events, messages and reports."""

    def __init__(
        self, party: Party, nursery: trio.Nursery, trainer: HandTrainer | None = None, mixing: Mixing | None = None
    ) -> None:
        self.party = party
        self.trainer = trainer or HandTrainer()
        self.events: list[Event] = []
        self.sent: list[tuple[tuple[PeerId, ...], RoundMessage]] = []
        self.published: list[RoundReport] = []
        self.config = config_of(party.world, party)
        self.tasks = Tasks(self._publish)
        self.tasks.use(nursery)
        self.tools = RoundContext(
            party.network,
            VirtualClock(),
            InlineOffload(),
            self.trainer,
            self.seal,
            self._publish,
            credential=party.credential,
        )
        self.adopter = TrainerUpdater(party.peer, party.chain, self.trainer, InlineOffload(), lambda own: own, mixing)
        nursery.start_soon(self.adopter.run)
        self.sealing: trio.Event | None = None
        self.state: RoundState = core.start(self.config, party.chain.head, 0.0, state_root=Root(bytes(32)))
        views = {p.peer: PeerView(p.peer, 0.0) for p in party.world.parties if p is not party}
        self.state = replace(self.state, peers=MappingProxyType(views))

    async def seal(self, payload: bytes) -> bytes:
        """As the party's, held up where `sealing` is set."""
        if self.sealing is not None:
            await self.sealing.wait()
        return await self.party.seal(payload)

    async def tell(self, event: Event) -> None:
        """Record an event for the machine."""
        self.events.append(event)

    async def send(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        """Record a message to others."""
        self.sent.append((to, message))

    def _publish(self, report: RoundReport) -> None:
        self.published.append(report)

    async def until_reported(self, kind: type[K], within_s: float = 5.0) -> K:
        """The newest event of this kind, once there is one; it is taken off the list."""
        await until(lambda: any(isinstance(event, kind) for event in self.events), within_s)
        event = next(event for event in reversed(self.events) if isinstance(event, kind))
        self.events.remove(event)
        return event


class OneUnit:
    """A peer without other units: what one unit's rounds would share with them."""

    spine: SpineView | None = None
    spine_ready: int | None = None

    def __init__(self, party: Party) -> None:
        self._party = party
        self.prepared_for: list[SpineView] = []

    async def send(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        """Nobody hears it."""

    async def send_and_wait(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        """Nobody hears it."""

    async def send_heartbeat(self, unit: UnitName, order: SendHeartbeat) -> None:
        """Nobody hears it."""

    def spine_moved(self, spine: SpineView) -> None:
        """Nobody cares."""

    async def prepare_others(self, unit: UnitName, spine: SpineView, sources: tuple[PeerId, ...]) -> None:
        """There are none."""
        self.prepared_for.append(spine)

    async def switch(self, unit: UnitName, prepared: PreparedSwitch) -> OpenRound:
        """Alone."""
        return await self._party.chain.switch(prepared)


def with_feedback(party: Party, beta: float) -> None:
    """From now on the party's run has error feedback."""
    feedback = ErrorFeedback(party.peer, beta, GRID, MemoryStorage(party.disk), InlineOffload())
    party.chain.tools = replace(party.chain.tools, feedback=feedback)


@asynccontextmanager
async def bench_in(
    world: RoundWorld, number: int = 0, trainer: HandTrainer | None = None, mixing: Mixing | None = None
) -> AsyncIterator[tuple[Bench, trio.Nursery]]:
    """A bench of one party, whose tasks end with the block."""
    async with trio.open_nursery() as nursery:
        yield Bench(world.parties[number], nursery, trainer, mixing), nursery
        nursery.cancel_scope.cancel()


def proposal_by(world: RoundWorld, number: int, attempt: int = 0) -> Proposal:
    """An attempt on the genesis whose leader and only reducer is this party."""
    proposal = world.proposal(((0, 6, number),), attempt=attempt, reduce_within_s=60.0)
    ballot = Ballot(attempt, world.parties[number].peer)
    return replace(proposal, ballot=ballot, pre_votes=world.consents(ballot) if attempt else ())


# --- whole services -----------------------------------------------------------------------------------------------------------


@dataclass
class PeerSession:
    """A party with its round service running."""

    party: Party
    service: RoundService
    rounds: PeerRounds
    scope: trio.CancelScope
    reported: list[RoundReport] = field(default_factory=list)
    signing_waits_for: trio.Event | None = None

    @property
    def index(self) -> int:
        return self.service.chain.head.index


async def live(
    world: RoundWorld,
    nursery: trio.Nursery,
    party: Party,
    trainer: StepTrainer | None = None,
    sums: SumRules = DEFAULT_SUMS,
) -> PeerSession:
    """Restore the party's disk and run its service, which knows all parties and no stranger."""
    members = {other.peer for other in world.parties}
    reported: list[RoundReport] = []

    async def is_member(peer: PeerId) -> bool:
        return peer in members

    open_round = await party.chain.restore()
    trainer = trainer or StepTrainer(party.peer)
    await trainer.load(party.chain.state.anchor_N, schedule_tokens=party.chain.head.total_tokens)

    async def sealed(payload: bytes) -> bytes:
        if life.signing_waits_for is not None:
            await life.signing_waits_for.wait()
        return await party.seal(payload)

    tools = RoundContext(
        party.network,
        VirtualClock(),
        InlineOffload(),
        trainer,
        sealed,
        reported.append,
        credential=party.credential,
        audits=AuditContext(random.Random(party.peer).random, ProofFiles(MemoryStorage(party.disk))),
    )
    peer_tools = PeerContext(party.network, tools.clock, sealed, is_member, reported.append)
    rounds = PeerRounds(RUN_ID, VERIFIER, peer_tools, HeadVector(MemoryStorage(party.disk)))
    config = replace(config_of(world, party), sums=sums)
    service = RoundService(config, party.chain, open_round, tools, rounds)
    rounds.add(service)
    rounds.serve()
    life = PeerSession(party, service, rounds, trio.CancelScope(), reported)

    async def run() -> None:
        with life.scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(trainer.run)
                inner.start_soon(rounds.run)

    nursery.start_soon(run)
    await rounds.list_peers(tuple(sorted(members)))
    return life


@asynccontextmanager
async def one_service(
    prepare: Callable[[RoundWorld, Party], Awaitable[None]] | None = None,
) -> AsyncIterator[tuple[RoundWorld, PeerSession, list[RoundMessage]]]:
    """One service, and two members whose words the test speaks; what the second member hears."""
    async with open_world(target_tokens=NEVER_DUE) as world, trio.open_nursery() as nursery:
        if prepare is not None:
            await prepare(world, world.parties[0])
        heard = listen(world.parties[1])
        listen(world.parties[2])
        yield world, await live(world, nursery, world.parties[0]), heard
        nursery.cancel_scope.cancel()


def listen(party: Party) -> list[RoundMessage]:
    """The messages that a party without a service receives."""
    heard: list[RoundMessage] = []

    async def take(sender: PeerId, request: bytes) -> bytes:
        envelope = open_envelope(request, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None)
        heard.append(decode_message(envelope.payload))
        return b""

    async def ask_for_whole(sender: PeerId, request: bytes) -> bytes:
        return SAY_WHOLE

    party.network.serve_calls(ROUND_CHANNEL, take)
    party.network.serve_calls(BEAT_CHANNEL, ask_for_whole)
    return heard


async def tell(sender: Party, to: Party, message: RoundMessage) -> None:
    """Say something to a service."""
    await tell_raw(sender, to, sender.sign(encode_message(message)))


async def tell_raw(sender: Party, to: Party, raw: bytes) -> None:
    """Say something that need not be a message."""
    await sender.network.call(to.peer, ROUND_CHANNEL, raw, timeout_s=2.0)


async def until(is_true: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait for a condition."""
    with trio.fail_after(within_s):
        while not is_true():
            await trio.sleep(0.05)


def of_kind(kind: type[K], heard: Sequence[RoundMessage]) -> list[K]:
    """The messages of one kind."""
    return [message for message in heard if isinstance(message, kind)]


async def assert_answers(world: RoundWorld, life: PeerSession, heard: list[RoundMessage], attempt: int = 9) -> None:
    """It still takes part: asked for a promise, it promises."""
    ballot = Ballot(attempt, world.parties[1].peer)
    await tell(world.parties[1], life.party, world.promise_request(ballot, life.service.chain.head.commit))
    await until(lambda: any(m.ballot == ballot for m in of_kind(Promise, heard)), within_s=5.0)


def heartbeat_of(party: Party, index: int = 0) -> Heartbeat:
    """A sign of life from a commit that nobody knows."""
    head = UnitHead(UNIT, CommitId(b"h" * 32), index, 0, 0, False, CommitId(bytes(32)), Root(bytes(32)))
    return Heartbeat(party.member, True, 0, (head,))


def heartbeat_at(party: Party, link: ChainLink) -> Heartbeat:
    """A sign of life from this commit."""
    message = heartbeat_of(party)
    at = replace(message.heads[0], head=link.commit, index=link.index, total_tokens=link.total_tokens)
    return replace(message, heads=(at,))
