"""Snapshots of a stage between its processes and their daemon, by the memory that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import trio

from peer.pipeline.stage.snapshot_bytes import SnapshotBytes
from peer.pipeline.stage.snapshot_room import SnapshotRoom
from peer.pipeline.stage.stage_channel import StageOp, StageReply
from protocol.errors import LocalProtocolError


class Ask(Protocol):
    """`StageProcess.ask`."""

    async def __call__(
        self, op: StageOp, fields: Mapping[str, object] = ..., *, num_answers: int = 1
    ) -> tuple[StageReply, bytes]:
        """Give an order. Returns its result."""
        ...


class ProcessSnapshots:
    """Takes and gives snapshots. Each of two rooms holds one at a time.

    Args:
        ask: gives orders to the processes. Its errors are those of all methods.
    """

    def __init__(self, ask: Ask, room: SnapshotRoom) -> None:
        self._ask, self._room = ask, room
        self._taking, self._giving = trio.Lock(), trio.Lock()
        self._in_room: StageReply | None = None
        """The answer to the order by which the processes write into the room; None if nothing there is to be read."""

    async def take(self) -> StageReply:
        """Have the processes copy their rows, once the last snapshot has left the room. Returns their answer."""
        async with self._taking:
            self._in_room = None  # what the processes write from now on is not what an earlier answer names
            self._in_room, _ = await self._ask("snapshot")
            return self._in_room

    async def written(self, taken: StageReply) -> memoryview:
        """Wait until the snapshot that was taken last is written. Returns its bytes.

        Args:
            taken: as `take` answered.

        Raises:
            LocalProtocolError: the room holds another one, or none.
        """
        async with self._taking:
            if taken is not self._in_room:
                raise LocalProtocolError("a snapshot that has left its room", "the one that was taken last, once")
            await self._ask("written", num_answers=taken.num_writers)
            self._in_room = None
            return await trio.to_thread.run_sync(self._room.take, taken.snapshot_bytes)

    async def restore(self, snapshot: SnapshotBytes) -> None:
        """Have the processes continue from a snapshot.

        Raises:
            RemoteProtocolError: it is none of this stage.
            MachineError: there is no memory for it.
        """
        async with self._giving:
            with trio.CancelScope(shield=True):  # nothing else may come into the room while it is read
                try:
                    await trio.to_thread.run_sync(self._room.give, snapshot)
                    await self._ask("restore", {"snapshot_bytes": len(snapshot)})
                finally:
                    await trio.to_thread.run_sync(self._room.forget, min(len(snapshot), self._room.num_bytes))
