"""The real Trainer: supervises the training process. Its death costs only the tokens since the last commit.

A dead worker is restarted from the anchor (theta <- A, ready tokens <- 0). After running out of memory, it restarts with half the
micro-batch, and from one sequence on with the next plan of the ladder (plan/plan_core.py). If not even one sequence fits into the
allowed memory of the card by the last plan, it holds the state on the CPU and does not train. A worker that does not answer is
killed first. A card that is lost, or fails at each start, is left for the other cards, or for the CPU if the owner chose no device.
Commands that were running at its death are obsolete or fail: `shift` and `load` both end at the anchor; `snapshot` and `evaluate`
raise.

Several processes, one on each card, may hold one replica together. The first of them obeys the daemon and passes each command on. The
end of any of them is the end of all, and one life begins anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, ReadAnchors, Snapshot, TrainerProgress
from averaging.rounds.traffic.spans import COMPUTE, Record, Span, nowhere
from peer.training.anchor_measures import AnchorMeasures
from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.plan.layout import Mesh, World
from peer.training.supervision import patience_core
from peer.training.supervision.regrouping import Regrouping
from peer.training.supervision.replica_cards import ReplicaCards, Without
from peer.training.training_plan import TrainingPlan
from peer.training.training_process import (
    Ended,
    MessageReader,
    Replies,
    Said,
    TrainingProcess,
    card_words_of,
    last_words,
    no_process,
    restart_pause_s,
)
from peer.training.unit_rooms import UnitRooms
from peer.training.worker_channel import (
    Command,
    Failed,
    OutOfMemory,
    ProfileOrder,
    Progress,
    Reply,
    Scored,
    ScoreOrder,
    frame,
)
from peer.training.worker_errors import WorkerDied, misfit_reason, ran_out_words, smaller_plan
from peer.training.worker_notes import Speed, WorkerNotes
from peer.training.worker_process import EarlyWorker
from protocol.errors import LocalProtocolError

log = structlog.get_logger()

_NO_LIFE: Final = -1
OWNER_HOLDS: Final = "its owner holds back what is trained"
START_WITHIN_S: Final = 300.0
"""Time for imports, the model, and the search for the micro-batch, on a slow machine."""


class WorkerTrainer:
    """The Trainer interface over a worker process, or over one for each rank of the plan's mesh. Created by `open_worker_trainer`.

    Args:
        devices: torch's names, one for each rank; the plan's device if there is one rank.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        anchor_N: torch.Tensor,
        early: EarlyWorker | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self._plan = plan
        self._cards = ReplicaCards(devices or (plan.device,) * plan.mesh.num_ranks)
        self._spans = plan.units.spans
        self._process = TrainingProcess(plan.units.whole.num_elements, early)
        self._rooms = UnitRooms(self._process.vectors, self._spans)
        self.shift_room = self._rooms.for_shift
        self._anchors = [anchor_N[begin:stop] for begin, stop in self._spans]
        """The anchor of each unit, from which the next worker starts."""
        self._command_lock = trio.Lock()
        self._measures = AnchorMeasures(
            self._rooms, self._command_lock, self._until_ready, self._exchange, lambda: self._misfit, self._patience_s
        )
        self._starting, self._ready = trio.CancelScope(), trio.Event()
        self._replies = Replies()
        self._number, self._schedule_tokens = 0, plan.schedule_tokens
        self._slowdown = plan.slowdown
        self._is_paused, self._is_held = plan.is_paused, False
        self._held_because = OWNER_HOLDS
        self._misfit = ""
        """Why the model does not fit into the allowed memory of the card, once known. It is not tried again in this life of the
        daemon.
        """
        self._life_of_theta = [_NO_LIFE] * len(self._spans)
        """`restarts` when the caller last knew a unit's theta. A shift applies to that life's theta only."""
        self._kill_reason = ""
        self._regrouping = Regrouping()
        self.regroup: Callable[[World], None] = self._regrouping.want
        """Trains on these cards from the next commit on. Costs what was trained since that commit's snapshot, but no moments."""

        self._card_plan = plan.card_plan
        self._last = self._begun(plan.first_step, plan.micro_batch)
        self._trained_before = 0
        self._speed = Speed()
        self._restarts = 0
        self.without: Without = lambda left: None
        self.record: Record = nowhere
        self.card: str | None = None
        """UUID of the NVIDIA card that trains, empty for another device; None before the training process has named it."""
        self.notes = WorkerNotes()
        self.card_report: CardReport | None = None
        """How the card trains, and why; None before the training process has told it."""
        self._state = "starting"
        self._reason = "the training process is starting"
        self._losses: deque[float] = deque(maxlen=10)

    # --- the Trainer interface ---

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int, unit: int = 0) -> None:
        """Theta <- anchor. A worker that dies meanwhile also restarts from it."""
        await self.set_anchor(anchor_N, unit=unit)
        self._schedule_tokens = schedule_tokens
        async with self._command_lock:
            await self._until_ready()
            await self._give(Command(op="load", unit=unit, schedule_tokens=schedule_tokens), anchor_N)
            self._regroup()

    async def snapshot(self, *, unit: int = 0, still_s: float = 0.0) -> Snapshot:
        """Theta at the next step boundary. Then no step is taken until the next shift or load, for `still_s` at most.

        Raises:
            WorkerDied: the worker died and its theta is lost.
        """
        async with self._command_lock:
            await self._until_ready()
            theta_N = self._rooms.snapshot(unit)  # also if nobody waits for it: the process writes there in any case
            reply = await self._exchange(Command(op="snapshot", unit=unit, still_s=still_s))
            if reply is None:
                self._rooms.spend(unit)
                raise WorkerDied("the training process died at the snapshot", "a snapshot", "it is being restarted")
            return Snapshot(theta_N, reply.tokens, reply.num_steps, reply.step, may_overwrite=True)

    async def shift(
        self,
        shift_N: torch.Tensor,
        *,
        credited_tokens: int,
        schedule_tokens: int,
        kept: Sequence[KeptPart] = (),
        unit: int = 0,
    ) -> None:
        """Theta <- kept theta + shift. A worker that died since the snapshot loads the anchor instead.

        Its theta is not the one that `shift_N` was computed for, and does not include the credited tokens.
        """
        self._schedule_tokens = schedule_tokens
        async with self._command_lock:
            await self._until_ready()
            if self._restarts == self._life_of_theta[unit]:
                parts = tuple((part.begin, part.stop, part.share) for part in kept)
                command = Command(
                    op="shift", unit=unit, schedule_tokens=schedule_tokens, credited_tokens=credited_tokens, kept=parts
                )
                await self._give(command, shift_N)
            else:
                await self._give(Command(op="load", unit=unit, schedule_tokens=schedule_tokens), self._anchors[unit])
            self._regroup()

    async def set_anchor(self, anchor_N: torch.Tensor, *, unit: int = 0) -> None:
        """Set the anchor for restarts of the worker. The vector is kept, not copied."""
        self._anchors[unit] = anchor_N
        if not self._ready.is_set():  # a worker that is starting reads it at the end of its start
            self._rooms.begin(unit, anchor_N)

    async def evaluate(
        self, read: ReadAnchors, experts: Sequence[int] = (), *, has_prose: bool = True
    ) -> HeldoutLosses:
        """Held-out losses, once no snapshot takes the room, unless there are several units. Raises as `PeerTrainer.evaluate`."""
        return await self._measures.losses(read, experts, has_prose=has_prose and bool(self._plan.prose_shards))

    async def score(self, read: ReadAnchors, order: ScoreOrder) -> Scored:
        """Log-likelihoods or answers by the whole model's parameters, once there is room. Raises as `PeerTrainer.evaluate`."""
        return await self._measures.scored(read, order)

    def progress(self, *, unit: int = 0) -> TrainerProgress:
        """Current counters, with the ready tokens of this unit."""
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        return TrainerProgress(
            tokens_ready=self._last.others_ready[unit - 1] if unit else self._last.tokens_ready,
            tokens_trained=self._trained_before + self._last.tokens_trained,
            loss_nats=loss,
            tokens_per_s=0.0 if self._is_paused else self._speed.tokens_per_s(trio.current_time()),
            restarts=self._restarts,
            state="held" if self._is_held else self._state,
            reason=self._held_because if self._is_held else self._reason,
            answers_within_s=self._measures.within_s + self._patience_s(),
            has_theta=self._life_of_theta[unit] == self._restarts,
        )

    @property
    def micro_batch(self) -> int:
        """Sequences at a time, as measured, or as halved after running out of memory."""
        return self._last.micro_batch

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, of several that of the first; None while there is none."""
        return self._process.pid

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers by rank; none while there are none."""
        return self._process.pids

    @property
    def cards(self) -> tuple[CardState, ...]:
        """The known facts of each card that trains."""
        trained = self._trained_before + self._last.tokens_trained
        tokens_per_s = 0.0 if self._is_paused else self._speed.tokens_per_s(trio.current_time())
        return self._cards.states(tokens_per_s, trained)

    async def set_slowdown(self, factor: float) -> None:
        """Train at 1 / factor of full speed from now on."""
        self._slowdown = factor
        await self.order(Command(op="slow", factor=factor))

    async def profile(self, order: ProfileOrder) -> Reply | None:
        """Record the next steps. The process answers at once, and writes files when they are done; None if it died first."""
        return await self.order(Command(op="profile", profile=order))

    async def pause(self) -> None:
        """Take no further step until `resume`. Commands are still obeyed. Also holds for a restarted worker."""
        await self._set_paused(True)

    async def resume(self) -> None:
        """Resume training."""
        await self._set_paused(False)

    def hold(self, is_held: bool, because: str = OWNER_HOLDS) -> None:
        """Tell the rounds that nothing can be contributed for now. Trained tokens are kept."""
        self._is_held, self._held_because = is_held, because

    async def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        await self.order(Command(op="pause" if is_paused else "resume"))
        if self._ready.is_set():
            self._say_what_it_does()

    # --- commands ---

    async def order(self, command: Command) -> Reply | None:
        """Have the process obey a command without values at its next step boundary; None if it dies first."""
        async with self._command_lock:
            await self._until_ready()
            return await self._exchange(command)

    async def _give(self, command: Command, values_N: torch.Tensor) -> Reply | None:
        """A command with a unit's values. Their shared memory is freed once the worker has used it."""
        area = self._rooms.lay(command.unit, values_N)
        reply = await self._exchange(command.model_copy(update={"area": area}))
        await self._rooms.free_used(command.unit)
        return reply

    async def _until_ready(self) -> None:
        while not self._ready.is_set():
            await self._ready.wait()

    async def _exchange(self, command: Command) -> Reply | None:
        """Send one command to the worker that is ready now and wait for its reply; None if it dies first.

        A worker that neither answers nor dies is frozen: it is killed, and so restarted. One that runs, or waits for a processor, is
        slow and gets more time, since other programs may leave it little or none.
        """
        stream, life = self._process.stream, self._restarts
        if stream is None or not self._ready.is_set():
            return None
        self._number += 1
        number, patience_s = self._number, self._patience_s()
        try:
            with trio.fail_after(patience_s) as sending:
                # send a started command to its end, or the next one would be read as the rest of it
                sending.shield = True
                await stream.send_all(frame(command.numbered(number)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        except trio.TooSlowError:
            self._give_up("the training process takes no commands")
            return None
        return await self._answer(command, number, life, patience_s)

    async def _answer(self, command: Command, number: int, life: int, patience_s: float) -> Reply | None:
        """The reply to a command that was sent; None if the worker died, or was killed as frozen."""
        begun_s, worked_s = trio.current_time(), self._process.runnable_s()
        wait_s = patience_s
        while True:
            with trio.move_on_after(wait_s):
                reply = await self._replies.of(number, lambda: self._restarts != life or not self._ready.is_set())
                if reply is not None and command.op in ("load", "shift", "snapshot"):
                    self._life_of_theta[command.unit] = life
                return reply
            if wait_s == patience_core.SECOND_LOOK_S:
                break
            before_s, worked_s = worked_s, self._process.runnable_s()
            is_busy = worked_s - before_s >= patience_core.LEAST_WORK_S and not self._process.stopped()
            has_time = trio.current_time() - begun_s + patience_s <= patience_core.MOST_PATIENCE_S
            # The last wait is for a daemon that was itself suspended: the reply may already be there, unread.
            wait_s = patience_s if is_busy and has_time else patience_core.SECOND_LOOK_S
        self._give_up(f"the training process did not answer for {trio.current_time() - begun_s:.0f} s")
        return None

    def _patience_s(self) -> float:
        return patience_core.patience_s(self._last.micro_batch, self._speed.slowest_s)

    def _give_up(self, reason: str) -> None:
        stopped = self._process.stopped()
        self._kill_reason = self._cards.named(stopped[0], reason) if stopped else reason
        self._process.kill()

    # --- supervision ---

    async def supervise(self) -> None:
        """Start the worker and restart it whenever it ends, until cancelled."""
        quick_deaths = 0
        while True:
            first_step = self._last.step
            with self._regrouping.life():
                ended = await self._live(self._next_plan())
            if (world := self._regrouping.taken()) is not None:
                self._note_regrouped(world)
                continue
            quick_deaths = quick_deaths + 1 if self._last.step == first_step else 0
            self._note_death(ended.said, ended.rank)
            await trio.sleep(restart_pause_s(quick_deaths))

    def _next_plan(self) -> TrainingPlan:
        """The plan of the next worker. It continues in the data and in the schedule."""
        plan, card_plan = self._plan, self._card_plan
        if self._misfit:
            plan, card_plan = plan.model_copy(update={"trains": False, "device": "cpu", "mesh": Mesh()}), None
        elif self.notes.leaves_card and plan.device == "auto":
            plan, card_plan = plan.model_copy(update={"device": "cpu", "mesh": Mesh()}), None
        return plan.model_copy(
            update={
                "first_step": self._last.step,
                "micro_batch": self._last.micro_batch,
                "card_plan": card_plan,
                "schedule_tokens": self._schedule_tokens,
                "slowdown": self._slowdown,
                "is_paused": self._is_paused,
            }
        )

    def _note_death(self, cause: Said, rank: int = 0) -> None:
        self._ready = trio.Event()
        self._trained_before += self._last.tokens_trained
        micro_batch, named, then = self._last.micro_batch, self._cards.named, "restarting it"
        said = named(rank, cause.reason if isinstance(cause, Failed) else "the training process died")
        if isinstance(cause, OutOfMemory) and cause.in_evaluation:
            self._measures.ran_out()
        elif isinstance(cause, OutOfMemory):
            self._card_plan, micro_batch = smaller_plan(cause)
        if self.notes.died(cause) and isinstance(cause, Failed):
            self._card_plan, micro_batch = self._plan.card_plan, 0
            then = self._go_on(rank, cause.reason)
        self._last = self._begun(self._last.step, micro_batch)
        self._restarts += 1
        self._state = "restarting"
        if isinstance(cause, OutOfMemory):
            if cause.is_final:
                needed_bytes = cause.card_report.expected_bytes if cause.card_report is not None else 0
                self._misfit = misfit_reason(self._plan.max_gpu_memory_bytes, needed_bytes)
            self._reason = self._misfit or named(rank, ran_out_words(cause, self._card_plan, micro_batch))
        else:
            self._reason = f"{self._kill_reason or said}; {then}"
        self._kill_reason = ""
        log.warning("worker_died", reason=self._reason, restarts=self._restarts)
        self._replies.wake()

    def _regroup(self) -> None:
        """A commit is in: end the processes if other cards are wanted. Commands wait for their processes."""
        if self._regrouping.end_life():
            self._ready = trio.Event()

    def _note_regrouped(self, world: World) -> None:
        self._cards.come_back(world)
        self._plan = self._plan.model_copy(update={"device": world.devices[0], "mesh": world.mesh})
        self.notes.died(None)
        self.notes.left_card(is_on_cpu=False)
        self._trained_before += self._last.tokens_trained
        self._card_plan, self._misfit, self._last = self._plan.card_plan, "", self._begun(self._last.step, 0)
        self._restarts += 1
        self._state, self._reason = "restarting", f"going on with {', '.join(world.devices)}"
        log.info("cards_regrouped", devices=", ".join(world.devices))
        self._replies.wake()

    def _go_on(self, rank: int, reason: str) -> str:
        """A card failed for good: the next life may be without it. Returns in words how training goes on."""
        world = self._cards.go_on(rank, reason, self.without)
        if world is None:
            return "restarting it"
        self._plan = self._plan.model_copy(update={"device": world.devices[0], "mesh": world.mesh})
        self.notes.left_card(is_on_cpu=world.devices[0] == "cpu")
        return f"going on without it on {', '.join(world.devices)}"

    async def _live(self, plan: TrainingPlan) -> Ended:
        """One life of a worker, or of one on each card. Returns the end that ended it, with its reason if it reported one."""
        for unit, anchor_N in enumerate(self._anchors):
            self._rooms.begin(unit, anchor_N)
        try:
            devices = self._cards.devices if plan.mesh.num_ranks > 1 else (plan.device,)
            return await self._process.live_together(plan, devices, self._listen)
        except OSError as error:
            if not self._restarts:
                raise no_process(error) from error
            self._kill_reason = f"the training process cannot be started: {error}"
        except LocalProtocolError as error:
            self._kill_reason = error.one_line()
        return Ended(0, None)

    async def _listen(self, rank: int, incoming: MessageReader) -> Said:
        if rank:
            return await last_words(incoming, partial(card_words_of, self._cards.take, rank))
        with trio.CancelScope(deadline=trio.current_time() + START_WITHIN_S) as self._starting:
            return await last_words(incoming, self._take)
        self._kill_reason = f"the training process was not ready after {START_WITHIN_S:.0f} s"
        return None

    def _begun(self, step: int, micro_batch: int) -> Progress:
        """The progress of a worker that has not reported yet."""
        others = (0,) * (len(self._spans) - 1)
        return Progress(
            step=step, tokens_ready=0, others_ready=others, tokens_trained=0, loss_nats=None, micro_batch=micro_batch
        )

    def _take(self, event: Reply | Progress) -> None:
        if isinstance(event, Reply):
            self._replies.take(event)
        else:
            self._last, now_s = event, trio.current_time()
            self.card = event.card
            self._cards.take(0, event.card, event.card_report)
            self.notes.take(event)
            self.card_report = self.notes.added_to(event.card_report or self.card_report)
            if event.card_report is not None:
                self._card_plan = event.card_report.plan
            if event.busy_s:
                self.record(Span(COMPUTE, "", now_s - event.busy_s, now_s))
            self._speed.note(now_s, self._trained_before + event.tokens_trained)
            if event.loss_nats is not None:
                self._losses.append(event.loss_nats)
            if not self._ready.is_set():
                self._say_what_it_does()
                self._starting.deadline = math.inf
                self._rooms.has_begun()
                self._ready.set()
        self._replies.wake()

    def _say_what_it_does(self) -> None:
        if self._misfit:
            self._state, self._reason = "held", self._misfit
        else:
            because = f"on the CPU: {self.notes.on_cpu_because}" if self.notes.on_cpu_because else ""
            self._state, self._reason = ("paused", "paused by its owner") if self._is_paused else ("training", because)

    def close(self) -> None:
        """Free the shared memory."""
        self._process.close()


@asynccontextmanager
async def open_worker_trainer(
    plan: TrainingPlan, anchor_N: torch.Tensor, early: EarlyWorker | None = None, devices: Sequence[str] = ()
) -> AsyncIterator[WorkerTrainer]:
    """A running trainer that begins at `anchor_N`, (N,) with all units one after another. Its workers end with the context.
    `devices` as of `WorkerTrainer`.
    """
    trainer = WorkerTrainer(plan, anchor_N, early, devices)
    del anchor_N
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.supervise)
            yield trainer
            nursery.cancel_scope.cancel()
    finally:
        trainer.close()
