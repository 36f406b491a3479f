"""Memory in which the processes of a stage write its snapshots for their daemon, and read those that they are to continue from.

It lies behind the areas of `SharedVectors`, in the same shared file. It takes memory only between a write and the read after it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Final

import torch

from peer.pipeline.stage.stage_snapshot import most_snapshot_bytes
from peer.training.worker_channel import mapping_bytes
from protocol.errors import RemoteProtocolError
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

        self._mapping = mmap.mmap(descriptor, 2 * self.num_bytes, offset=mapping_bytes(schema.num_elements))
        whole = torch.frombuffer(memoryview(self._mapping), dtype=torch.uint8)
        self.out, self.back = whole[: self.num_bytes], whole[self.num_bytes :]

    def take(self, num_bytes: int) -> bytes:
        """The snapshot that the processes wrote. Its room takes no memory then."""
        data = self._mapping[:num_bytes]
        self._free(0, num_bytes)
        return data

    def give(self, data: bytes) -> None:
        """Lay a snapshot down for the processes.

        Raises:
            RemoteProtocolError: it is larger than any of this stage.
        """
        if len(data) > self.num_bytes:
            raise RemoteProtocolError(f"a snapshot of {len(data)} bytes", f"at most {self.num_bytes}")
        self._mapping[self.num_bytes : self.num_bytes + len(data)] = data

    def forget(self, num_bytes: int) -> None:
        """The processes have read the snapshot that was given."""
        self._free(self.num_bytes, num_bytes)

    def put_down(self) -> None:
        """Drop this process's mapping of the pages, as `SharedVectors.put_down`."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def _free(self, begin: int, num_bytes: int) -> None:
        if hasattr(mmap, "MADV_REMOVE") and num_bytes:
            with suppress(OSError):  # the file system cannot do it
                self._mapping.madvise(mmap.MADV_REMOVE, begin, _in_pages(num_bytes))


def rooms_bytes(schema: TensorSchema) -> int:
    """Bytes of both rooms."""
    return 2 * _room_bytes(schema)


def _room_bytes(schema: TensorSchema) -> int:
    return _in_pages(most_snapshot_bytes(schema, _VALUE_BYTES))


def _in_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
