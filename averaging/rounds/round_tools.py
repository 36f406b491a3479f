"""What the parts of a round service work with: the seams, the word that something changed, and the edge of every task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import trio

from averaging.network.seams import Clock, Network, Offload, Publish, Trainer
from protocol.errors import PotluckError
from protocol.ids import PeerId
from protocol.rounds.messages import RoundMessage
from protocol.rounds.state import Event

log = structlog.get_logger()

Tell = Callable[[Event], Awaitable[None]]
"""Give the round machine an event; waits while it has too many."""

SendMessage = Callable[[tuple[PeerId, ...], RoundMessage], Awaitable[None]]
"""Sign a message and have it brought to these peers."""


@dataclass(frozen=True)
class RoundTools:
    """The seams and the keys of a round service.

    `seal(payload)` signs under the round domain with the next durable sequence number; `is_member(peer)` says whether a peer
    holds a good credential.
    """

    network: Network
    clock: Clock
    offload: Offload
    trainer: Trainer
    seal: Callable[[bytes], Awaitable[bytes]]
    is_member: Callable[[PeerId], Awaitable[bool]]
    publish: Publish


class Changes:
    """Wakes everybody who waits for the next change."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        """Something changed."""
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        """Until the next change."""
        await self._event.wait()


class Tasks:
    """Starts tasks in a nursery that is there once the service runs; what fails in one is told, and nothing else falls with it."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._nursery: trio.Nursery | None = None

    def use(self, nursery: trio.Nursery) -> None:
        """Start tasks here from now on."""
        self._nursery = nursery

    def spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run it beside everything else."""
        if self._nursery is not None:
            self._nursery.start_soon(self.guarded, function, *args)

    async def guarded(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """The edge of a task: our own errors end here, also those that a nursery wrapped; bugs go on."""
        try:
            await function(*args)
        except* PotluckError as group:
            for error in _leaves(group):
                reason = error.one_line()
                log.warning("task_failed", task=function.__name__, reason=reason)
                self._publish("task_failed", {"task": function.__name__, "reason": reason})


def _leaves(group: BaseExceptionGroup[PotluckError]) -> list[PotluckError]:
    found: list[PotluckError] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
