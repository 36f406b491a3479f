"""Memory in which the processes of a stage write its snapshots for their daemon, and read those that they are to continue from.

It lies behind the areas of `SharedVectors`, in the same shared file. It takes memory only between a write and the read after it. A
snapshot that nobody reads keeps its memory until the next one. The daemon reads and writes the file, not its mapping: a slice of a
mapping holds the interpreter's lock, and so the event loop, for as long as the whole copy takes. All methods but `forget` and
`put_down` are for threads, and so is `forget` for a large snapshot.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

import torch

from peer.pipeline.stage.snapshot_bytes import SnapshotBytes, own_memory
from peer.pipeline.stage.stage_snapshot import most_snapshot_bytes
from peer.training.worker_channel import free_pages, mapping_bytes
from protocol.errors import LocalProtocolError, MachineError, RemoteProtocolError
from protocol.tensors.tensor_schema import TensorSchema

_VALUE_BYTES: Final = 4
"""A stage's process has its parameters and moments in float32."""


class SnapshotRoom:
    """Room for one snapshot on its way out, and for one on its way back.

    Args:
        descriptor: of the shared file, which has `rooms_bytes` behind its areas.
    """

    def __init__(self, descriptor: int, schema: TensorSchema) -> None:
        self.num_bytes = _room_bytes(schema)
        """Of the largest snapshot that fits."""

        self._descriptor, self._begin = descriptor, mapping_bytes(schema.num_elements)
        self._mapping = mmap.mmap(descriptor, 2 * self.num_bytes, offset=self._begin)
        whole = torch.frombuffer(memoryview(self._mapping), dtype=torch.uint8)
        self.out, self.back = whole[: self.num_bytes], whole[self.num_bytes :]

    def take(self, num_bytes: int) -> memoryview:
        """The snapshot that the processes wrote. Its room takes no memory then.

        Raises:
            LocalProtocolError: it is larger than the room.
            MachineError: there is no memory for it.
        """
        if num_bytes > self.num_bytes:
            raise LocalProtocolError(f"a snapshot of {num_bytes} bytes", f"at most {self.num_bytes}")
        data = own_memory(num_bytes)
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(self._begin)
            file.readinto(data)
        self._free(0, num_bytes)
        return data

    def give(self, data: SnapshotBytes) -> None:
        """Lay a snapshot down for the processes.

        Raises:
            RemoteProtocolError: it is larger than any of this stage.
            MachineError: there is no memory for it.
        """
        if len(data) > self.num_bytes:
            raise RemoteProtocolError(f"a snapshot of {len(data)} bytes", f"at most {self.num_bytes}")
        left, place = memoryview(data), self._begin + self.num_bytes
        try:
            while left:  # the system writes at most 2 GiB at a time
                num_written = os.pwrite(self._descriptor, left, place)
                left, place = left[num_written:], place + num_written
        except OSError as error:
            raise MachineError(f"no memory for a snapshot of {len(data)} bytes: {error}", "free memory") from error

    def forget(self, num_bytes: int) -> None:
        """The processes have read the snapshot that was given."""
        self._free(self.num_bytes, num_bytes)

    def put_down(self) -> None:
        """Drop this process's mapping of the pages, as `SharedVectors.put_down`."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def _free(self, begin: int, num_bytes: int) -> None:
        free_pages(self._mapping, begin, begin + _in_pages(num_bytes))


def rooms_bytes(schema: TensorSchema) -> int:
    """Bytes of both rooms."""
    return 2 * _room_bytes(schema)


def _room_bytes(schema: TensorSchema) -> int:
    return _in_pages(most_snapshot_bytes(schema, _VALUE_BYTES))


def _in_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
