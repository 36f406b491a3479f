"""One training process after another on one piece of shared memory: started, given its plan, listened to, and ended.

What is asked of it, and what its death costs, is its supervisor's: peer/training/trainer.py where it holds whole units and trains
by itself, peer/pipeline/stage/stage_process.py where it holds one stage and does what it is told.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio
from pydantic import BaseModel

from peer.training.worker_channel import MAX_MESSAGE_BYTES, SharedVectors, frame, mapping_bytes
from peer.training.worker_process import EarlyWorker, shared_memory, start_worker
from protocol.errors import LocalProtocolError, MachineError

T = TypeVar("T")

RESTART_PAUSE_S: Final = 0.5
SLOW_RESTART_S: Final = 10.0
MAX_QUICK_DEATHS: Final = 5
"""One that dies so often without having done anything is a fault of this machine: said, and tried again more slowly."""

STOP_WITHIN_S: Final = 3.0
_PART_BYTES: Final = 1 << 20


def restart_pause_s(quick_deaths: int) -> float:
    """Before the next start, after so many lives in a row in which nothing was done."""
    return SLOW_RESTART_S if quick_deaths >= MAX_QUICK_DEATHS else RESTART_PAUSE_S


def no_process(error: OSError) -> MachineError:
    """The system gives no process."""
    return MachineError(
        f"the training process cannot be started: {error}", "a working Python", "check memory and limits"
    )


class MessageReader:
    """What a training process sends, piece by piece."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def exactly(self, num_bytes: int) -> bytes | None:
        """So many bytes; None where it ends before."""
        while len(self._buffer) < num_bytes:
            part = await self._stream.receive_some(_PART_BYTES)
            if not part:
                return None
            self._buffer += part
        found = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return found

    async def message(self) -> bytes | None:
        """The next message, without its length; None where it ends before.

        Raises:
            LocalProtocolError: one that is too long.
        """
        head = await self.exactly(4)
        if head is None:
            return None
        length = int.from_bytes(head, "little")
        if length > MAX_MESSAGE_BYTES:
            raise LocalProtocolError(
                f"a message of {length} bytes from the training process", f"at most {MAX_MESSAGE_BYTES}"
            )
        return await self.exactly(length)


class TrainingProcess:
    """The processes, of which there is one at a time or none, and the memory that they share with us.

    Args:
        num_elements: float32 values in each of its areas.
        early: a process that was started before; its memory is taken over with it.
    """

    def __init__(self, num_elements: int, early: EarlyWorker | None = None) -> None:
        self.stream: trio.SocketStream | None = None
        """To the one that has its plan; None while there is none."""

        self._early = early.take() if early is not None else None
        self._memory_fd = early.memory_fd if early is not None else shared_memory()
        os.ftruncate(self._memory_fd, mapping_bytes(num_elements))
        self.vectors = SharedVectors(self._memory_fd, num_elements)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def live(self, plan: BaseModel, listen: Callable[[MessageReader], Awaitable[T]]) -> T | None:
        """One life, from its start until `listen` returns, which is what comes of it; None where the process ended before.

        Raises:
            OSError: the system gives no process.
            LocalProtocolError: it says what nobody understands.
        """
        worker, self._early = self._early or start_worker(self._memory_fd), None
        self._process = worker.process
        worker.channel.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(worker.channel))
        try:
            await stream.send_all(frame(plan))
            self.stream = stream
            return await listen(MessageReader(stream))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        finally:
            self.stream = None
            with trio.CancelScope(shield=True):
                await stream.aclose()
                await _end(worker.process)
            self._process = None

    def kill(self) -> None:
        """End the one that there is; its life ends with it."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Give the shared memory back."""
        os.close(self._memory_fd)


async def _end(process: subprocess.Popen[bytes]) -> None:
    """The end of the channel ends it; one that does not listen is killed."""
    with trio.move_on_after(STOP_WITHIN_S):
        while process.poll() is None:
            await trio.sleep(0.05)
        return
    process.kill()
    await trio.to_thread.run_sync(process.wait)
