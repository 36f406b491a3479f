"""How the processes of one replica speak with each other beside torch's collectives: few bytes, in a fixed order, without deadlines.

Rank 0 gets the daemon's commands and passes them on. A wait for the next command may be as long as a pause, so it is a wait at a
socket and not at a collective, which has a time limit. A rank whose neighbour is gone sees the end of the socket.
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import Final

from peer.training.plan.layout import Mesh
from protocol.errors import LocalProtocolError, TemporaryError

ORDERS_NAME: Final = "orders"
"""Socket of rank 0, in the folder where the ranks meet."""

MEET_WITHIN_S: Final = 120.0
"""All ranks import the same modules, on a machine that may be busy."""

_RETRY_S: Final = 0.02
_HEAD: Final = struct.Struct("<I")
MOST_BYTES: Final = 1 << 20


class RankGone(TemporaryError):
    """Another process of the same replica ended. The daemon starts all of them anew."""


class RankGroup:
    """The ranks of one replica. Made by `meet`; all ranks must make the same calls in the same order.

    Args:
        sockets: of rank 0 one to each other rank, in their order; of another rank the one to rank 0; none for one process alone.
    """

    def __init__(self, mesh: Mesh, rank: int, sockets: tuple[socket.socket, ...] = ()) -> None:
        self.mesh, self.rank = mesh, rank
        self._sockets = sockets

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.mesh.num_ranks

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which the daemon commands."""
        return self.rank == 0

    def share(self, data: bytes = b"") -> bytes:
        """Rank 0's bytes, on every rank. The others wait for them as long as it takes.

        Raises:
            RankGone: a process ended.
        """
        if not self.is_first:
            return _receive(self._sockets[0])
        for each in self._sockets:
            _send(each, data)
        return data

    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's bytes by rank, on rank 0; none on the others. Raises as `share`."""
        if not self.is_first:
            _send(self._sockets[0], data)
            return []
        return [data, *(_receive(each) for each in self._sockets)]

    def share_all(self, data: bytes = b"") -> bytes:
        """As `share`, of any length."""
        num_bytes = int(self.share(str(len(data)).encode()))
        return b"".join(self.share(data[begin : begin + MOST_BYTES]) for begin in range(0, num_bytes, MOST_BYTES))

    def gather_all(self, data: bytes) -> list[bytes]:
        """As `gather`, of any length above 0 that is the same on all ranks."""
        parts = [self.gather(data[begin : begin + MOST_BYTES]) for begin in range(0, len(data), MOST_BYTES)]
        return [b"".join(of_rank) for of_rank in zip(*parts, strict=True)]

    def all(self, is_so: bool) -> bool:
        """Whether it is so on every rank; the same answer on each. Raises as `share`."""
        found = self.gather(b"1" if is_so else b"0")
        return self.share(b"1" if all(part == b"1" for part in found) else b"0") == b"1"

    def largest(self, value: float) -> float:
        """The largest of all ranks' values, on each of them. Raises as `share`."""
        found = self.gather(value.hex().encode())
        most = max((float.fromhex(part.decode()) for part in found), default=value)
        return float.fromhex(self.share(most.hex().encode()).decode())

    def is_same(self, value: int) -> bool:
        """Whether all ranks have this value; the same answer on each. Raises as `share`."""
        first = int(self.share(str(value).encode()))
        return self.all(value == first)

    def wait(self) -> None:
        """Wait until every rank is here. Raises as `share`."""
        self.all(True)

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.close()


def alone() -> RankGroup:
    """The group of one process."""
    return RankGroup(Mesh(), 0)


def meet(mesh: Mesh, rank: int, folder: Path) -> RankGroup:
    """Find the other ranks in an empty folder that only this user can enter.

    Raises:
        RankGone: they do not come in time.
        OSError: the folder takes no sockets.
    """
    if mesh.num_ranks == 1:
        return RankGroup(mesh, 0)
    deadline_s = time.monotonic() + MEET_WITHIN_S
    if rank:
        return RankGroup(mesh, rank, (_reached(folder / ORDERS_NAME, rank, deadline_s),))
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(str(folder / ORDERS_NAME))
        waiting.listen(mesh.num_ranks)
        found: dict[int, socket.socket] = {}
        while len(found) < mesh.num_ranks - 1:
            waiting.settimeout(max(_RETRY_S, deadline_s - time.monotonic()))
            try:
                came, _ = waiting.accept()
            except TimeoutError as error:
                raise _late(len(found) + 1, mesh) from error
            came.setblocking(True)
            found[int(_receive(came).decode())] = came
    return RankGroup(mesh, 0, tuple(found[each] for each in sorted(found)))


def _reached(path: Path, rank: int, deadline_s: float) -> socket.socket:
    while True:
        way = socket.socket(socket.AF_UNIX)
        try:
            way.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            way.close()
            if time.monotonic() > deadline_s:
                raise RankGone(
                    "rank 0 did not come", f"it within {MEET_WITHIN_S:.0f} s", "all ranks start anew"
                ) from error
            time.sleep(_RETRY_S)
            continue
        _send(way, str(rank).encode())
        return way


def _late(num_here: int, mesh: Mesh) -> RankGone:
    return RankGone(f"{num_here} of {mesh.num_ranks} processes", "all of them", "all ranks start anew")


def _send(way: socket.socket, data: bytes) -> None:
    if len(data) > MOST_BYTES:
        raise LocalProtocolError(f"{len(data)} bytes between ranks", f"at most {MOST_BYTES}")
    try:
        way.sendall(_HEAD.pack(len(data)) + data)
    except OSError as error:
        raise _gone() from error


def _receive(way: socket.socket) -> bytes:
    (length,) = _HEAD.unpack(_exactly(way, _HEAD.size))
    if length > MOST_BYTES:
        raise LocalProtocolError(f"{length} bytes between ranks", f"at most {MOST_BYTES}")
    return _exactly(way, length)


def _exactly(way: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        try:
            part = way.recv(num_bytes - len(data))
        except OSError as error:
            raise _gone() from error
        if not part:
            raise _gone()
        data += part
    return bytes(data)


def _gone() -> RankGone:
    return RankGone("a process of the same replica ended", "all of them", "the daemon starts them anew")
