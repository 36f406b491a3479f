"""The disk of a simulated peer. Its size stays within the bounds that production states: of each kind of file at every
write, and of the log, written anew on another disk, at the end.

The bounds are averaging/rounds/lineage/retention.py's and log_sizes.py's. States are counted without their headers, which weigh
something only where a state has a few dozen values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from averaging.network.seams.interfaces import LOG_FRAME_BYTES
from averaging.rounds.lineage.retention import num_kept_updates, update_bytes
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.log_entries import LOG_NAME
from averaging.state.residual_files import FOLDER
from averaging.state.state import STATE_BYTES_PER_VALUE
from averaging.state.unit_log import LogLimits, UnitLog
from averaging.storage.memory_storage import UNBOUNDED_BYTES, MemoryDisk, MemoryStorage
from protocol.errors import StorageError
from protocol.estimates.unit_disk import MAX_PINNED, OLD_GENERATIONS, max_updates
from protocol.ids import CommitId, PeerId
from tests.simulation.invariants import Violation

MAX_GENERATIONS: Final = 2 + OLD_GENERATIONS + 1 + MAX_PINNED + 1
"""The two newest, the old ones, the last that a quorum made, those that joiners download, and the one that was just written."""

ACK: Final = b"A"
PROMISE: Final = b"P"
"""How log entries begin that are votes. A ballot of its own a peer without a vote keeps, too, and who is alone acks for itself."""

_BASE: Final = slice(1, 33)


class BoundedDisk(MemoryDisk):
    """Asks at the beginning of every write whether everything before it may be there, and whether a vote may be cast: it is written
    before anybody hears of it.

    Attributes:
        num_refused: entries of logs that a full disk did not take from this process.
    """

    def __init__(self, peer: PeerId, check: Callable[[], None], vote: Callable[[str, CommitId], None]) -> None:
        super().__init__()
        self._name = peer.encode()
        self._check = check
        self._vote = vote
        self.num_refused = 0

    @property
    def is_full(self) -> bool:
        """Whether it has only so much room."""
        return self.capacity_bytes < UNBOUNDED_BYTES

    def power_on(self) -> None:
        """Another process uses it."""
        super().power_on()
        self.num_refused = 0

    def begin(self, name: str, record: bytes) -> int:
        """A write that is not durable yet."""
        self._check()
        if name.endswith(LOG_NAME) and (record[:1] == ACK or (record[:1] == PROMISE and self._name not in record)):
            self._vote(name.removesuffix(LOG_NAME).removesuffix("/"), CommitId(record[_BASE]))
        self.check_alive()
        try:
            return super().begin(name, record)
        except StorageError:
            self.num_refused += name.endswith(LOG_NAME)
            raise

    def files_in(self, folder: str) -> list[bytes]:
        """All files whose names begin so."""
        return [data for name, data in self.files.items() if name.startswith(folder)]


@dataclass(frozen=True)
class SlotBuffer:
    """The most bytes of a unit's files, asked of production once and compared at every write."""

    state_bytes: int
    updates_bytes: int
    files_bytes: int
    feedback_bytes: int


def room_of(chain: UnitChain) -> SlotBuffer:
    """The bounds of a unit, but for its log, which grows."""
    tools = chain.tools
    updates_bytes = max_updates(num_kept_updates(tools)) * update_bytes(tools.result_codec, tools.grid)
    return SlotBuffer(
        STATE_BYTES_PER_VALUE * tools.grid.num_elements,
        updates_bytes,
        chain.disk_bound_bytes - tools.log.bound_bytes,
        tools.feedback.bound_bytes if tools.feedback is not None else 0,
    )


def check_unit(who: str, disk: BoundedDisk, folder: str, log: UnitLog, room: SlotBuffer) -> None:
    """Raises Violation where files of a unit are more, or weigh more, than they may."""
    generations = len(disk.files_in(f"{folder}generations/"))
    incoming_bytes = sum(map(len, disk.files_in(f"{folder}incoming/")))
    results_bytes = sum(map(len, disk.files_in(f"{folder}results/")))
    feedback_bytes = sum(map(len, disk.files_in(f"{folder}{FOLDER}")))
    log_bytes = _log_bytes(disk.logs.get(folder + LOG_NAME, ()))
    _require(who, "generations", generations, MAX_GENERATIONS)
    _require(who, "bytes of a download", incoming_bytes, room.state_bytes)
    _require(who, "bytes of updates", results_bytes, room.updates_bytes)
    _require(who, "bytes of residuals", feedback_bytes, room.feedback_bytes)
    _require(who, "bytes of the log", log_bytes, log.bound_bytes)
    all_bytes = generations * room.state_bytes + incoming_bytes + results_bytes + feedback_bytes + log_bytes
    _require(who, "bytes", all_bytes, room.files_bytes + log.bound_bytes)


async def check_log(who: str, disk: BoundedDisk, folder: str, chain: UnitChain, limits: LogLimits) -> None:
    """The log takes no more than its limits say of what would stay of it, beside the round that is open. Raises Violation."""
    # all of one moment: the rounds go on while the copy is written anew
    records, head = tuple(disk.logs.get(folder + LOG_NAME, ())), chain.head.commit
    followed = [link.commit for link in chain.links[-chain.num_kept_votes :]]
    copy = MemoryDisk()
    copy.logs[LOG_NAME] = list(records)
    anew = UnitLog(MemoryStorage(copy), limits)
    await anew.load()
    await anew.compact(followed)
    written_bytes = _log_bytes(record for record in records if record[_BASE] != head)
    bound_bytes = limits.growth * _log_bytes(copy.logs[LOG_NAME]) + limits.slack_bytes
    _require(who, "bytes of a log that was to be written anew", written_bytes, bound_bytes)


def _log_bytes(records: Iterable[bytes]) -> int:
    sizes = list(map(len, records))
    return sum(sizes) + LOG_FRAME_BYTES * len(sizes)


def _require(who: str, what: str, found: int, most: int) -> None:
    if found > most:
        raise Violation(f"the disk of {who} holds {found} {what}, it may hold {most}")
