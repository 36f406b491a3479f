"""A TLS connection driven by trio: OpenSSL reads and writes a non-blocking socket itself, without a buffer of ours in between.

Each call moves one record of 16 KiB. The event loop gets its turn after every RECORDS_AT_ONCE records.
The constants were measured; see tests/benchmarks/LOG.md.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from fcntl import ioctl
from math import inf
from termios import FIONREAD
from typing import Final

import trio

from averaging.network.pacing.line_rate import PathStats

RECORD_BYTES: Final = 16_384
RECORDS_AT_ONCE: Final = 32
"""Records between two turns of the event loop: few enough to keep it responsive."""

MAX_RECORD_BYTES: Final = RECORD_BYTES + 512
"""A record with its header, padding and tag (RFC 8446, section 5.2: at most 256 and 5 bytes more)."""

MOST_WAKE_BYTES: Final = 1 << 18
SMALLEST_WAKE_BYTES: Final = 1 << 13
"""Bounds of the receive low-water mark. Each wake-up costs the event loop time, so a long frame wakes it only once per this many
bytes.
"""

KEEPALIVE_IDLE_S: Final = 20
KEEPALIVE_EVERY_S: Final = 5
KEEPALIVE_PROBES: Final = 4
"""A vanished machine is noticed after 40 s by a reader without a deadline of its own."""

MOST_UNSENT_BYTES: Final = 1 << 17
"""Unsent bytes that the kernel holds for a stream. With more, a sender on a thin line would take bytes for sent long before they
leave, and frames and deadlines are measured by that.
"""

FEWER_WAKES_UNSENT_BYTES: Final = 1 << 18
"""The same while frames are longer than this, as they are on a fast stream."""

UNACKED_S: Final = 40.0
"""Time limit for the acknowledgement of bytes sent on a calls connection. A kernel with room acknowledges however busy its machine
is. The limit is longer than a sender waits for that room.
"""

SO_MAX_PACING_RATE: Final = 47
"""Linux's number (asm-generic/socket.h); Python's socket module does not name it."""

_INT: Final = struct.Struct("=i")
_RECORD_HEAD: Final = struct.Struct(">3xH")
"""Head of a TLS record: type and version, then the number of bytes that follow (RFC 8446, section 5.1)."""

_AROUND_BYTES: Final = _RECORD_HEAD.size + 17
"""Bytes that a record adds to its content: head, inner type and the tag of every TLS 1.3 cipher (RFC 8446, section 5.2)."""

_UNPACED: Final = 0xFFFF_FFFF
_TCP_INFO: Final = struct.Struct("=24xI40xI28xI16xQ16xII24xQQ")
"""Fields of Linux's `struct tcp_info` (uapi/linux/tcp.h): unacked packets, rtt in us, packets sent again, acked bytes, unsent
bytes, best rtt in us; then us without room at the receiver, and us in which our send buffer was the limit.
"""

_LEAST_INFO_BYTES: Final = 152
"""Length of `tcp_info` from Linux 4.6 on; the times of full buffers follow from 4.10 on."""

_BEYOND_LOSSES: Final = b"bbr"
"""Congestion control that does not slow down at a lost packet."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def _on_wire(num_bytes: int) -> int:
    """Least number of bytes on the wire for `num_bytes` of content."""
    return num_bytes + _AROUND_BYTES * -(-num_bytes // RECORD_BYTES)


class TlsSocket:
    """Moves bytes. A cancelled call leaves what it did not move with the caller. At most one reader and one writer at a time.

    A caller's loop needs no checkpoint of its own: `send` and `receive_into` yield before they move more than RECORDS_AT_ONCE
    records in one turn.

    All methods raise OSError when the connection is broken; ssl.SSLError is one.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._connection = connection
        self._is_closed = False
        self._wake_bytes = 1
        self._unsent_bytes = MOST_UNSENT_BYTES
        self._pace = _UNPACED
        self._goes_by_losses: bool | None = None
        self._shook_hands_s = inf
        self._records_since_turn = 0
        self._is_in_record = False
        self.num_bytes = 0
        """Bytes sent and received so far."""

        self.shown = b""
        """The other side's certificate (DER)."""

        self.closed = trio.Event()
        """Set by `close`."""

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def age_s(self) -> float:
        """Seconds since the handshake."""
        return trio.current_time() - self._shook_hands_s

    async def handshake(self) -> bytes:
        """Do the TLS handshake and return the other side's certificate (DER). Only its signature by our CA has been checked."""
        while True:
            try:
                self._connection.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._connection)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._connection)
            else:
                break
        certificate = self._connection.getpeercert(binary_form=True)
        if certificate is None:
            raise ssl.SSLError("no certificate was shown")
        self.shown, self._shook_hands_s = certificate, trio.current_time()
        return certificate

    async def send(self, data: memoryview, begin: int) -> int:
        """Send a few records of `data` from `begin` on, at least one byte; returns the offset to continue from.

        After a cancelled call, call it again with the same bytes from the same offset: OpenSSL may have begun to send them.
        """
        await self._give_turn()
        num_records = 0
        while begin < len(data) and num_records < RECORDS_AT_ONCE:
            try:
                num_bytes = self._connection.send(data[begin:])
                self.num_bytes += num_bytes
                begin += num_bytes
                num_records += 1
                self._records_since_turn += 1 + num_bytes // RECORD_BYTES
            except ssl.SSLWantWriteError:
                if num_records:
                    return begin
                await self._wait(trio.lowlevel.wait_writable)
            except ssl.SSLWantReadError:
                if num_records:
                    return begin
                await self._wait(trio.lowlevel.wait_readable)
        return begin

    async def rest(self) -> None:
        """Send nothing, not even keepalives, until the end or a first byte comes; that byte stays to be received."""
        self._keep_alive(False)
        try:
            self._wake_at(0)
            if not self._connection.pending():
                await self._wait(trio.lowlevel.wait_readable)
        finally:
            self._keep_alive(True)

    def _keep_alive(self, is_on: bool) -> None:
        if not self._is_closed:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, is_on)

    async def wait_writable(self) -> None:
        """Wait until the kernel has room for more: it holds few unsent bytes (MOST_UNSENT_BYTES)."""
        await self._wait(trio.lowlevel.wait_writable)

    async def receive_into(self, buffer: memoryview, begin: int, *, is_whole: bool = False) -> int:
        """Fill `buffer` from `begin` on with received bytes, at least one.

        Args:
            is_whole: the other side has announced that it fills the buffer, so wake up less often.

        Returns:
            The offset to continue from; `begin` at the end of the connection.
        """
        await self._give_turn()
        num_records, first, there_bytes = 0, begin, 0
        while begin < len(buffer) and num_records < RECORDS_AT_ONCE:
            missing_bytes = len(buffer) - begin
            if is_whole and there_bytes < _on_wire(min(missing_bytes, RECORD_BYTES)) and not self._has_begun_record():
                there_bytes, record_bytes = self._look_ahead()
                if there_bytes < record_bytes:
                    if begin > first:
                        return begin
                    await self._wait_for_record(missing_bytes)
            try:
                num_bytes = self._connection.recv_into(buffer[begin:])
            except ssl.SSLWantReadError:
                self._is_in_record = True
                if begin > first:
                    return begin
                self._wake_at(missing_bytes - MAX_RECORD_BYTES)
                await self._wait(trio.lowlevel.wait_readable)
            except ssl.SSLWantWriteError:
                if begin > first:
                    return begin
                await self._wait(trio.lowlevel.wait_writable)
            else:
                self._is_in_record = False
                if not num_bytes:
                    return begin
                self.num_bytes += num_bytes
                begin += num_bytes
                num_records += 1
                self._records_since_turn += 1
                there_bytes -= _on_wire(num_bytes)
        return begin

    def _has_begun_record(self) -> bool:
        """Whether OpenSSL may hold a part of the next record. Then the kernel cannot tell how much of it is missing."""
        return self._is_in_record or bool(self._connection.pending())

    def _look_ahead(self) -> tuple[int, int]:
        """The number of bytes that the kernel has, and the length of their first record, as far as it is known."""
        if self._is_closed:
            raise ConnectionResetError("closed here")
        (there_bytes,) = _INT.unpack(ioctl(self._connection, FIONREAD, bytes(_INT.size)))
        if there_bytes < _RECORD_HEAD.size:
            return there_bytes, _RECORD_HEAD.size
        head = socket.socket.recv(self._connection, _RECORD_HEAD.size, socket.MSG_PEEK)
        if len(head) < _RECORD_HEAD.size:
            return 0, _RECORD_HEAD.size
        return there_bytes, _RECORD_HEAD.size + int(_RECORD_HEAD.unpack(head)[0])

    async def _wait_for_record(self, missing_bytes: int) -> None:
        """Wait until the kernel has a whole record and a good part of the frame, or until nothing more comes.

        The record is not read earlier: the kernel does not count bytes that OpenSSL holds, so that each packet would wake us.
        """
        before_bytes = -1
        while True:
            there_bytes, record_bytes = self._look_ahead()
            if record_bytes <= there_bytes or there_bytes <= before_bytes:
                return
            before_bytes = there_bytes
            known_bytes = record_bytes if record_bytes > _RECORD_HEAD.size else 0
            self._wake_at(max(known_bytes, min(_on_wire(missing_bytes), MOST_WAKE_BYTES)))
            await self._wait(trio.lowlevel.wait_readable)

    def _wake_at(self, wake_bytes: int) -> None:
        """Wake up when the kernel holds `wake_bytes` instead of at each packet. They must still be due; an end wakes at once."""
        wake_bytes = max(1, min(wake_bytes, MOST_WAKE_BYTES))
        if wake_bytes < SMALLEST_WAKE_BYTES:
            wake_bytes = 1
        if wake_bytes != self._wake_bytes:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
            self._wake_bytes = wake_bytes

    async def _give_turn(self) -> None:
        """Yield before anything is moved: a cancellation afterwards would lose what was moved."""
        if self._records_since_turn < RECORDS_AT_ONCE:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._records_since_turn = 0
            await trio.lowlevel.checkpoint()

    async def _wait(self, until_ready: Callable[[ssl.SSLSocket], Awaitable[None]]) -> None:
        if self._is_closed:
            raise ConnectionResetError("closed here")
        self._records_since_turn = 0
        try:
            await until_ready(self._connection)
        except trio.ClosedResourceError as error:
            raise ConnectionResetError("closed here") from error
        except (
            trio.BusyResourceError
        ) as error:  # TLS is in the middle of its own message: both directions wait for the same event
            raise ConnectionResetError("the other side stopped in the middle of a change of keys") from error

    def hold_for(self, frame_bytes: int) -> None:
        """Set the kernel's bound of unsent bytes for frames of this length."""
        unsent_bytes = MOST_UNSENT_BYTES if frame_bytes <= FEWER_WAKES_UNSENT_BYTES else FEWER_WAKES_UNSENT_BYTES
        option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        if unsent_bytes != self._unsent_bytes and option is not None and not self._is_closed:
            self._unsent_bytes = unsent_bytes
            with suppress(OSError):  # it has ended, which its own stream hears
                self._connection.setsockopt(socket.IPPROTO_TCP, option, unsent_bytes)

    def carry_calls(self) -> None:
        """Hold few unsent bytes, so that a ping passes a long reply, and notice a broken path soon: calls dial no other."""
        for name, value in (("TCP_NOTSENT_LOWAT", RECORD_BYTES), ("TCP_USER_TIMEOUT", round(UNACKED_S * 1000))):
            option = getattr(socket, name, None)
            if option is not None:
                self._connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def stats(self) -> PathStats | None:
        """The kernel's statistics of what we send; None if it has none."""
        option = getattr(socket, "TCP_INFO", None)
        if self._is_closed or option is None or sys.platform != "linux":
            return None
        try:
            found = self._connection.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size)
            if self._goes_by_losses is None:
                name = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                self._goes_by_losses = not name.startswith(_BEYOND_LOSSES)
        except OSError:
            return None
        if len(found) < _LEAST_INFO_BYTES:
            return None
        found = found.ljust(_TCP_INFO.size, b"\0")
        unacked, rtt_us, num_again, acked_bytes, waiting_bytes, best_us, no_room_us, held_us = _TCP_INFO.unpack(found)
        best_s = min(rtt_us, best_us) / 1e6  # 2^32 - 1 while there is none yet
        return PathStats(
            acked_bytes,
            waiting_bytes,
            not (unacked or waiting_bytes),
            rtt_us / 1e6,
            best_s,
            num_again if self._goes_by_losses else 0,
            held_us / 1e6,
            no_room_us / 1e6,
        )

    def pace(self, bytes_per_s: float) -> None:
        """Limit the kernel's sending rate; infinite for no limit."""
        rate = _UNPACED if bytes_per_s == inf else max(1, min(round(bytes_per_s), _UNPACED - 1))
        if rate != self._pace and not self._is_closed and sys.platform == "linux":
            self._pace = rate
            with suppress(OSError):  # it has ended, which its own stream hears
                self._connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", rate))

    @property
    def paced_bytes_per_s(self) -> float:
        """The kernel's limit; infinite if there is none."""
        return inf if self._pace == _UNPACED else float(self._pace)

    def close(self, *, is_reset: bool = False) -> None:
        """Close the connection; waiting readers and writers fail. Sent bytes still arrive unless it is a reset."""
        if self._is_closed:
            return
        self._is_closed = True
        self.closed.set()
        trio.lowlevel.notify_closing(self._connection)
        if is_reset:
            with suppress(OSError):
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._connection.close()


def prepare(connection: socket.socket) -> None:
    """Set the options of a connected socket. The kernel sizes its buffers, because a size that we set would end its autotuning."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_NOTSENT_LOWAT", MOST_UNSENT_BYTES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def wrap(connection: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> TlsSocket:
    """TLS over a connected socket, before the handshake. Owns the socket, and closes it if this raises OSError."""
    try:
        prepare(connection)
        wrapped = context.wrap_socket(connection, server_side=is_server, do_handshake_on_connect=False)
    except OSError:
        connection.close()
        raise
    return TlsSocket(wrapped)
