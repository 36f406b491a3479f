"""Runs one training process at a time on shared memory: starts it, sends its plan, reads its messages, and ends it.

Its supervisor sends the commands and handles its death: peer/training/trainer.py for a process that holds whole units and trains by
itself, peer/pipeline/stage/stage_process.py for one that holds one stage and only obeys.
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
"""After this many deaths without any progress the fault lies with this machine. It is reported, and restarts become slower."""

STOP_WITHIN_S: Final = 3.0
SAVED_BYTES_PER_S: Final = 2e8
MOST_SAVE_S: Final = 30.0
"""An ending process saves the optimizer's moments, 4 bytes a value, at the speed of a plain disk. One that takes longer is killed,
and the file before stays.
"""

_PART_BYTES: Final = 1 << 20


def restart_pause_s(quick_deaths: int) -> float:
    """Seconds before the next start, after this many lives without any progress."""
    return SLOW_RESTART_S if quick_deaths >= MAX_QUICK_DEATHS else RESTART_PAUSE_S


def no_process(error: OSError) -> MachineError:
    """The system cannot create a process."""
    return MachineError(
        f"the training process cannot be started: {error}", "a working Python", "check memory and limits"
    )


class MessageReader:
    """Reads a training process's messages from its stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def exactly(self, num_bytes: int) -> bytes | None:
        """Exactly `num_bytes` bytes; None if the stream ends first."""
        while len(self._buffer) < num_bytes:
            part = await self._stream.receive_some(_PART_BYTES)
            if not part:
                return None
            self._buffer += part
        found = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return found

    async def message(self) -> bytes | None:
        """The next message, without its length; None if the stream ends first.

        Raises:
            LocalProtocolError: the message is too long.
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
    """The training processes, at most one at a time, and the memory shared with them.

    Args:
        num_elements: float32 values in each of its areas.
        early: a process that is already running; its memory is taken over with it.
    """

    def __init__(self, num_elements: int, early: EarlyWorker | None = None) -> None:
        self.stream: trio.SocketStream | None = None
        """The stream to the process that has its plan; None if there is none."""

        self._early = early.take() if early is not None else None
        self._memory_fd = early.memory_fd if early is not None else shared_memory()
        os.ftruncate(self._memory_fd, mapping_bytes(num_elements))
        self.vectors = SharedVectors(self._memory_fd, num_elements)
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_within_s = STOP_WITHIN_S + min(MOST_SAVE_S, 4 * num_elements / SAVED_BYTES_PER_S)

    @property
    def pid(self) -> int | None:
        """The process id, None if there is no process."""
        return self._process.pid if self._process is not None else None

    async def live(self, plan: BaseModel, listen: Callable[[MessageReader], Awaitable[T]]) -> T | None:
        """One life of the process, from its start until `listen` returns; returns that result, or None if the process ended first.

        Raises:
            OSError: the system cannot create a process.
            LocalProtocolError: it sent an invalid message.
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
                await _end(worker.process, self._stop_within_s)
            self._process = None

    def kill(self) -> None:
        """Kill the running process, if any. Its `live` returns then."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Free the shared memory."""
        os.close(self._memory_fd)


async def _end(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Closing the channel ends the process. One that does not react is killed."""
    with trio.move_on_after(within_s):
        while process.poll() is None:
            await trio.sleep(0.05)
        return
    process.kill()
    await trio.to_thread.run_sync(process.wait)
