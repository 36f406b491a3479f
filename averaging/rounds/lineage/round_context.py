"""Dependencies of the parts of a round service: its interfaces, the signal that something changed, and the edge of every task.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from secrets import SystemRandom
from typing import Protocol, TypeGuard

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Network, Offload, Trainer
from averaging.rounds.lineage.adoption import Mixing
from averaging.rounds.lineage.round_reports import Publish, TaskFailed
from averaging.rounds.lineage.unit_chain import PreparedSwitch
from averaging.rounds.traffic.spans import Record, nowhere
from averaging.state.proof_files import ProofFiles
from protocol.errors import ConnectionReset, PeerUnreachable, PotluckError, StorageError
from protocol.identity.standing import PeerStanding, all_keepers
from protocol.ids import PeerId, UnitName
from protocol.rounds.events import Event
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.lineage.lineage import SpineView
from protocol.rounds.messages.messages import RoundMessage
from protocol.rounds.orders import SendHeartbeat
from protocol.rounds.state import OpenRound

log = structlog.get_logger()

Tell = Callable[[Event], Awaitable[None]]
"""Give the round machine an event; waits while it has too many."""

Seal = Callable[[bytes], Awaitable[bytes]]
"""Signs a payload under the round domain with the next durable sequence number."""

IsMember = Callable[[PeerId], Awaitable[bool]]
"""Whether a peer holds a good credential."""

SendMessage = Callable[[tuple[PeerId, ...], RoundMessage], Awaitable[None]]
"""Sign a message and deliver it to these peers."""


def is_gone(reply: bytes | PotluckError) -> TypeGuard[PeerUnreachable]:
    """Whether the reply to a message or its repetition means that its receiver is gone: the connection was refused. A reset only
    means that one connection broke.
    """
    return isinstance(reply, PeerUnreachable) and not isinstance(reply, ConnectionReset)


class Peerwide(Protocol):
    """The parts that the rounds of one unit share with those of this peer's other units."""

    @property
    def spine(self) -> SpineView | None:
        """The spine as it is followed here; None before it is known."""
        ...

    @property
    def spine_ready(self) -> int | None:
        """Tokens that this peer has ready for the spine's next round; None if it does not hold the spine."""
        ...

    async def send(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        """Sign a message and deliver it to these peers, and to ourselves if we are named."""
        ...

    async def send_and_wait(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        """As `send`, but wait until each peer has it or cannot be reached."""
        ...

    async def send_heartbeat(self, unit: UnitName, order: SendHeartbeat) -> None:
        """Report the heads of all units to these peers, unless another unit has just done so."""
        ...

    def spine_moved(self, spine: SpineView) -> None:
        """The spine has a new head, or more of its tree is known."""
        ...

    async def prepare_others(self, unit: UnitName, spine: SpineView, sources: tuple[PeerId, ...]) -> None:
        """Fetch what the other units need to follow the spine to another lineage. Does nothing if `unit` is not the spine."""
        ...

    async def switch(self, unit: UnitName, prepared: PreparedSwitch) -> OpenRound:
        """Flip a unit to another lineage; with the spine, every unit that has to follow it. Returns what is known of votes on its
        new head.

        Raises:
            StorageError: the record could not be written. LocalProtocolError: the unit has moved meanwhile. Nothing has changed.
        """
        ...


@dataclass(frozen=True)
class AuditContext:
    """How a unit's sums are audited. `draw` gives numbers in [0, 1) that nobody else can guess: it chooses the sums. `proofs` of false
    ones are kept there; None keeps them in memory alone.
    """

    draw: Callable[[], float] = SystemRandom().random
    proofs: ProofFiles | None = None


@dataclass(frozen=True)
class HostWord:
    """The host's signed word, as it is known here: `standings` of known peers that are no keepers, ourselves among them, and the
    newest `hold` while its time lasts (R28).
    """

    standings: Callable[[], Mapping[PeerId, PeerStanding]] = all_keepers
    hold: Callable[[], Hold | None] = lambda: None


@dataclass(frozen=True)
class RoundContext:
    """The interfaces and keys of one unit's rounds. `trainer` is its part of the local training, `mixing` says how commits are
    mixed into it, if they are, and `record` takes the durations of the work. `credential` is our newest proof of admission.
    `steps_in_place`: whether the trainer needs no
    anchor once the next commit is there, so that it may move in place.
    """

    network: Network
    clock: Clock
    offload: Offload
    trainer: Trainer
    seal: Seal
    publish: Publish
    mixing: Mixing | None = None
    record: Record = nowhere
    credential: Callable[[], bytes] = bytes
    steps_in_place: bool = True
    audits: AuditContext = AuditContext()
    host_word: HostWord = HostWord()


class Changes:
    """Wakes every task that waits for the next change."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        """Something changed."""
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()


def tell_failure(publish: Publish, task: str, error: PotluckError) -> None:
    """Publish a failure; one of the disk is marked for its owner."""
    publish(TaskFailed(task, error.one_line(), is_of_disk=isinstance(error, StorageError)))


class Tasks:
    """Starts tasks in a nursery that is there once the service runs. A task that fails is reported, and stops nothing else."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._nursery: trio.Nursery | None = None

    def use(self, nursery: trio.Nursery) -> None:
        """Start tasks in this nursery from now on."""
        self._nursery = nursery

    def spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run it in the background. Starts nothing once the service has ended, though messages may still arrive."""
        if self._nursery is None:
            return
        try:
            self._nursery.start_soon(self.guarded, function, *args)
        except RuntimeError:  # this is how trio reports a closed nursery
            self._nursery = None

    async def guarded(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """The edge of a task: our own errors end here, also those that a nursery wrapped; bugs propagate."""
        try:
            await function(*args)
        except* PotluckError as group:
            for error in leaves(group):
                log.warning("task_failed", task=function.__name__, reason=error.one_line())
                tell_failure(self._publish, function.__name__, error)


def leaves(group: BaseExceptionGroup[PotluckError]) -> list[PotluckError]:
    """The errors that nurseries wrapped, however often."""
    found: list[PotluckError] = []
    for error in group.exceptions:
        found.extend(leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
