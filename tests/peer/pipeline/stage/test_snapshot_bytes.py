"""Memory of the daemon for a snapshot: its own mapping, and an error in a line where the system has none."""

from __future__ import annotations

import errno
import mmap

import pytest

from peer.pipeline.stage.snapshot_bytes import own_memory
from protocol.errors import MachineError


def test_memory_is_a_writable_mapping_that_ends_with_its_last_reference() -> None:
    data = own_memory(5)
    assert (len(data), data.readonly, bytes(data)) == (5, False, bytes(5))
    mapping, part = data.obj, data[1:3]
    assert isinstance(mapping, mmap.mmap)
    del data
    part[:] = b"ab"
    with pytest.raises(BufferError):
        mapping.close()
    del part
    mapping.close()


def test_no_bytes_take_no_memory() -> None:
    assert len(own_memory(0)) == 0


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError()])
def test_a_system_without_memory_is_an_error_in_a_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **named: object) -> mmap.mmap:
        raise error

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(MachineError, match="no memory for 5 bytes"):
        own_memory(5)
