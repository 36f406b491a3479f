"""The heads of all units of a peer, moved together (R23 and R24): one durable record names the target of each.

The record decides from the moment it is on disk. The units' own logs follow, at the latest at the next start after a crash. Only
the last record counts, so each replaces the whole log before it.

Rules: R23, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Storage
from averaging.state.log_entries import LoggedRounds
from averaging.state.unit_log import UnitLog
from protocol.errors import LocalProtocolError, StorageError
from protocol.ids import CommitId, UnitName
from protocol.rounds.lineage.lineage import TreeNode
from protocol.rounds.messages.wire import commit_id, decode_certificate, encode_certificate

log = structlog.get_logger()

VECTOR_LOG: Final = "heads.log"
_MOVE, _DONE = b"M", b"D"
_MOVE_RECORDS: Final = 2
"""A move, and the note that all units' logs contain it."""

_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class UnitMove:
    """The move of one unit: the fork up to which its lineage stays, and the certificates after it, oldest first."""

    unit: UnitName
    fork: CommitId
    certificates: tuple[bytes, ...]


@dataclass(frozen=True)
class Mover:
    """One unit that is ready to move. `has(commit)` says whether a commit is on its lineage. `flip()` moves it in memory and in
    its own log, and returns whether that log could be written; `moving` is held meanwhile.
    """

    move: UnitMove
    log: UnitLog
    moving: trio.Lock
    has: Callable[[CommitId], bool]
    flip: Callable[[], Awaitable[bool]]


class HeadVector:
    """Moves the heads of several units at once. `storage` belongs to the peer, not to a unit."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._behind: dict[UnitName, Mover] = {}
        self._busy = trio.Lock()

    async def finish(self, logs: Mapping[UnitName, UnitLog]) -> None:
        """Write into each unit's log what a crash left out. Call before the units read their logs.

        Raises:
            StorageError: the disk refuses, or holds a record that no version of this log writes.
        """
        records = await self._storage.read_records(VECTOR_LOG)
        if not records or records[-1] == _DONE:
            await self._forget_old(len(records))
            return
        for move in read_moves(records[-1]):
            unit_log = logs.get(move.unit)
            if unit_log is not None:
                await _complete_log(unit_log, move)
        await self._storage.append(VECTOR_LOG, _DONE)

    async def move(self, movers: Sequence[Mover]) -> None:
        """Flip these units, all or none.

        Raises:
            LocalProtocolError: one of them has left the lineage that its switch starts from. StorageError: the record could not
                be written, or the disk still refuses the log of a unit that moved earlier. Nothing has changed in either case.
        """
        async with self._busy, AsyncExitStack() as stack:
            await self._settle()
            for mover in movers:
                await stack.enter_async_context(mover.moving)
            for mover in movers:
                if not mover.has(mover.move.fork):
                    raise LocalProtocolError(
                        f"unit {mover.move.unit} has left the lineage to be switched", "its old fork"
                    )
            await self._storage.replace_log(VECTOR_LOG, [_encode([mover.move for mover in movers])])
            self._behind = {mover.move.unit: mover for mover in movers if not await mover.flip()}
            if not self._behind:
                await self._note_done()

    async def _settle(self) -> None:
        """Complete all logs first: the next record replaces the last one."""
        for unit, mover in tuple(self._behind.items()):
            async with mover.moving:
                await mover.log.settle()
            self._behind.pop(unit, None)
            if not self._behind:
                await self._note_done()

    async def _forget_old(self, num_records: int) -> None:
        """Shorten a log that was only appended to: all its moves are done."""
        if num_records <= _MOVE_RECORDS:
            return
        try:
            await self._storage.replace_log(VECTOR_LOG, [_DONE])
        except StorageError as error:
            log.warning("heads_not_forgotten", reason=error.one_line())

    async def _note_done(self) -> None:
        try:
            await self._storage.append(VECTOR_LOG, _DONE)
        except StorageError as error:
            # the next start checks the units' logs again, and finds them complete
            log.warning("heads_not_noted", reason=error.one_line())


def unit_move(unit: UnitName, fork: CommitId, path: Sequence[TreeNode]) -> UnitMove:
    """The move to the end of `path`."""
    raws = tuple(encode_certificate(node.certificate) for node in path if node.certificate is not None)
    return UnitMove(unit, fork, raws)


async def _complete_log(unit_log: UnitLog, move: UnitMove) -> None:
    logged = await unit_log.load()
    if not move.certificates or move.certificates[-1] in {raw for _, raw in logged.certificates}:
        return
    if logged.certificates and move.fork not in _commits(logged):
        return  # it was there, and has moved on to another lineage
    log.info("head_moved_at_start", unit=move.unit, commits=len(move.certificates))
    await unit_log.log_switch(move.fork, move.certificates)


def _commits(logged: LoggedRounds) -> set[CommitId]:
    parent, raw = logged.certificates[-1]
    return {*(base for base, _ in logged.certificates), commit_id(parent, decode_certificate(raw).record)}


def _encode(moves: Sequence[UnitMove]) -> bytes:
    parts = [_MOVE]
    for move in moves:
        for field in (move.unit.encode(), move.fork, b"".join(_framed(raw) for raw in move.certificates)):
            parts.append(_framed(field))
    return b"".join(parts)


def _framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def read_moves(record: bytes) -> list[UnitMove]:
    """The moves in a record of the log.

    Raises:
        StorageError: a record that no version of this log writes.
    """
    if record[:1] != _MOVE:
        raise StorageError(
            f"an entry {record[:1]!r} in {VECTOR_LOG}", "entries written by potluck", "restore or rejoin"
        )
    fields = _unframed(record[1:])
    if len(fields) % 3:
        raise StorageError(f"{len(fields)} fields in {VECTOR_LOG}", "three a unit", "restore or rejoin")
    return [
        UnitMove(UnitName(fields[i].decode(errors="replace")), CommitId(fields[i + 1]), tuple(_unframed(fields[i + 2])))
        for i in range(0, len(fields), 3)
    ]


def _unframed(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    offset = 0
    while offset < len(data):
        begin = offset + _LENGTH.size
        length = int.from_bytes(data[offset:begin], "little")
        offset = begin + length
        if offset > len(data):
            raise StorageError(f"a record cut short in {VECTOR_LOG}", "whole records", "restore or rejoin")
        parts.append(data[begin:offset])
    return parts
