"""Measures of other parameters than those in training: held-out losses, and scores on tasks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import trio

from averaging.network.seams.interfaces import HeldoutLosses, ReadAnchors
from peer.training.unit_rooms import UnitRooms
from peer.training.worker_channel import Area, Command, Reply, Scored, ScoreOrder
from peer.training.worker_errors import NO_EVALUATION_S, NO_ROOM_TO_EVALUATE, DoesNotFit, WorkerDied, all_finite

T = TypeVar("T")

ROOM_WITHIN_S: Final = 30.0
"""So long a slice of a score waits until no snapshot takes the room. On a slow line a round holds one nearly all the time; the slice
then costs a second place for the whole model, 4 bytes a value.
"""


class AnchorMeasures:
    """Measures in the training process, between two of its steps. Errors as of `PeerTrainer.evaluate`.

    Args:
        rooms: the memory shared with the process.
        lock: held for each command.
        until_ready: waits until the process obeys commands.
        exchange: sends a command and waits for its reply; None if the process died first.
        misfit: why the model does not fit into the card's memory; empty if it does.
        patience_s: how long one command may take.
    """

    def __init__(
        self,
        rooms: UnitRooms,
        lock: trio.Lock,
        until_ready: Callable[[], Awaitable[None]],
        exchange: Callable[[Command], Awaitable[Reply | None]],
        misfit: Callable[[], str],
        patience_s: Callable[[], float],
    ) -> None:
        self._rooms, self._lock = rooms, lock
        self._until_ready, self._exchange, self._misfit = until_ready, exchange, misfit
        self._patience_s = patience_s
        self._num_left = 0
        """Commands of the running measure that are not sent yet."""

        self._ran_out_until_s = -math.inf
        self._ends_by_s = 0.0
        """When the last one sent is answered at the latest. The process obeys it to its end, though nobody may wait for it."""

    def ran_out(self) -> None:
        """A measure over several cards ended their processes. None is made for `NO_EVALUATION_S`."""
        self._ran_out_until_s = trio.current_time() + NO_EVALUATION_S

    @property
    def within_s(self) -> float:
        """The longest time for which a measure may still hold up other commands."""
        return max(0.0, self._ends_by_s - trio.current_time()) + self._num_left * self._patience_s()

    async def losses(self, read: ReadAnchors, experts: Sequence[int], *, has_prose: bool) -> HeldoutLosses:
        """Held-out losses of these experts, or of all together if there are none, and of the prose."""

        async def measure(areas: tuple[Area, ...]) -> HeldoutLosses:
            found = [await self._loss(Command(op="evaluate", expert=each, areas=areas)) for each in experts or (None,)]
            prose = await self._loss(Command(op="evaluate_prose", areas=areas)) if has_prose else None
            return HeldoutLosses(tuple(found), prose)

        return await self._by_anchors(read, measure, max(1, len(experts)) + has_prose)

    async def scored(self, read: ReadAnchors, order: ScoreOrder) -> Scored:
        """Log-likelihoods or answers by the whole model's parameters, beside a snapshot that is not spent in time."""

        async def measure(areas: tuple[Area, ...]) -> Scored:
            return (await self._reply(Command(op="score", score=order, areas=areas))).scored or Scored()

        return await self._by_anchors(read, measure, 1, ROOM_WITHIN_S)

    async def _by_anchors(
        self,
        read: ReadAnchors,
        measure: Callable[[tuple[Area, ...]], Awaitable[T]],
        num_commands: int,
        room_within_s: float = math.inf,
    ) -> T:
        """Measure by so many commands, once no snapshot takes the room, or after so long. Several units are not waited for."""
        until_s = trio.current_time() + room_within_s
        while not self._misfit():
            if trio.current_time() < self._ran_out_until_s:
                raise DoesNotFit(NO_ROOM_TO_EVALUATE)
            with trio.move_on_at(until_s):
                await self._rooms.until_room()
            async with self._lock:
                await self._until_ready()
                if self._rooms.has_room or trio.current_time() >= until_s:  # else a snapshot was taken meanwhile
                    areas, rooms = self._rooms.for_evaluation()
                    self._num_left = num_commands
                    try:
                        await read(rooms)
                        await self._until_ready()  # the process may have died meanwhile, and its areas are not these
                        return await measure(areas)
                    finally:
                        self._num_left = 0
                        await self._rooms.free_evaluated(areas)
        raise DoesNotFit(self._misfit())

    async def _loss(self, command: Command) -> float:
        return all_finite(((await self._reply(command)).loss_nats,))[0]

    async def _reply(self, command: Command) -> Reply:
        self._num_left, self._ends_by_s = self._num_left - 1, trio.current_time() + self._patience_s()
        reply = await self._exchange(command)
        self._ends_by_s = 0.0
        if reply is None:
            raise WorkerDied("the training process died while evaluating", "its result", "it is being restarted")
        if reply.does_not_fit:
            raise DoesNotFit(NO_ROOM_TO_EVALUATE)
        return reply
