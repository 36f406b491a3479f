"""A TLS connection driven by trio: a non-blocking socket that OpenSSL reads and writes itself, without a buffer of ours in between.

Measured on two cores, processor seconds of both ends a GB: this 2.9, a MemoryBIO between socket and TLS 3.1, a blocking socket in
a thread 2.6 (all beside other work). Each call moves one record of 16 KiB, about 10 us; the loop gets its turn every
RECORDS_AT_ONCE of them.
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
"""Half a millisecond of the loop's time on an idle core, one on a busy one."""

MAX_RECORD_BYTES: Final = RECORD_BYTES + 512
"""With its header, padding and tag (RFC 8446, section 5.2: at most 256 and 5 more)."""

MOST_WAKE_BYTES: Final = 1 << 18
SMALLEST_WAKE_BYTES: Final = 1 << 13
"""To be woken costs the loop 0.1 to 0.2 ms, at 100 Mbit/s for every two or three packets: 30 MB took 0.50 CPU seconds, woken at
32 kB 0.34. A round of four members there, 25M int8 values, took 4.3 to 4.8 CPU seconds woken at 64 kB on both ends, 3.8 to 3.95 with
what is said here and for FEWER_WAKES_UNSENT_BYTES.
"""

KEEPALIVE_IDLE_S: Final = 20
KEEPALIVE_EVERY_S: Final = 5
KEEPALIVE_PROBES: Final = 4
"""A machine that vanished is noticed after 40 s by whoever only waits for it; who has a deadline of its own notices before."""

MOST_UNSENT_BYTES: Final = 1 << 17
"""That the kernel holds of a stream beyond what is on its way: more of it, up to 4 MB, would tell a sender on a thin line that all is
sent when half a minute of it is still to go, and frames and deadlines are measured by that.
"""

FEWER_WAKES_UNSENT_BYTES: Final = 1 << 18
"""The same while frames are longer than this, as they are where a stream carries so much in a tenth of a second."""

UNACKED_S: Final = 40.0
"""What a connection for calls has sent must be acknowledged in so long: the other kernel does, however busy its machine is, where it
has room. It is longer than a sender waits for that room.
"""

SO_MAX_PACING_RATE: Final = 47
"""Linux's number (asm-generic/socket.h), which Python's socket has no name for."""

_INT: Final = struct.Struct("=i")
_RECORD_HEAD: Final = struct.Struct(">3xH")
"""Of TLS: type and version, then how many bytes follow (RFC 8446, section 5.1)."""

_AROUND_BYTES: Final = _RECORD_HEAD.size + 17
"""What a record adds to its content: its head, the type inside and the tag of every cipher of TLS 1.3 (RFC 8446, section 5.2)."""

_UNPACED: Final = 0xFFFF_FFFF
_TCP_INFO: Final = struct.Struct("=24xI40xI28xI16xQ16xII24xQQ")
"""Of Linux's `struct tcp_info` (uapi/linux/tcp.h): unacked packets, rtt in us, packets sent again, acked bytes, not sent bytes, best
rtt in us; us in which the receiver had no room, and in which more could have been sent had our buffer held more.
"""

_LEAST_TOLD_BYTES: Final = 152
"""What kernels from 4.6 on tell; before 4.10 they do not tell of buffers."""

_BEYOND_LOSSES: Final = b"bbr"
"""Congestion control that does not slow down at a lost packet."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def _on_wire(num_bytes: int) -> int:
    """The fewest bytes in which so many travel."""
    return num_bytes + _AROUND_BYTES * -(-num_bytes // RECORD_BYTES)


class TlsSocket:
    """Moves bytes; what a cancelled call has not moved stays with the caller. At most one reader and one writer at a time.

    Whoever moves bytes in a loop need not give others a turn: `send` and `receive_into` do, before they move more than
    RECORDS_AT_ONCE records without one. (One turn at each call was half of all turns of the loop in a round at 100 Mbit/s.)

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
        """That were sent and received on it."""

        self.shown = b""
        """The certificate (DER) that the other side showed."""

        self.closed = trio.Event()
        """Set by `close`."""

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def age_s(self) -> float:
        """Since its handshake."""
        return trio.current_time() - self._shook_hands_s

    async def handshake(self) -> bytes:
        """Do it; returns the certificate (DER) that the other side showed. It is issued by our CA, nothing else of it is checked."""
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
        """Send of `data` from `begin` on what a few records hold, at least one byte; returns where to go on.

        Once it has begun with a piece it must be called again with the same bytes from there, until it returns.
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
        """Say nothing, not even that we are there, until something comes, the end or a first byte; that stays to be received."""
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
        """Until the kernel has room for more: it holds little unsent (MOST_UNSENT_BYTES)."""
        await self._wait(trio.lowlevel.wait_writable)

    async def receive_into(self, buffer: memoryview, begin: int, *, is_whole: bool = False) -> int:
        """Fill `buffer` from `begin` on with what is there, at least one byte; returns where to go on, `begin` at the end of all.

        Args:
            is_whole: the other side has said that it sends as much: it may be waited for in larger parts.
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
        """Whether OpenSSL has, or may have, something of the next record: then the kernel does not know how much is missing of it."""
        return self._is_in_record or bool(self._connection.pending())

    def _look_ahead(self) -> tuple[int, int]:
        """How many bytes the kernel has, and how long the record is that they begin with, as far as that is known."""
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
        """Until the kernel has a whole record, and of a frame a good part; or nothing more comes. A record is not begun before: what
        OpenSSL has of it the kernel no longer counts, so that each packet would have to wake us.
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
        """Be woken when the kernel holds so many bytes, which must still come, not at each packet; an end wakes at once."""
        wake_bytes = max(1, min(wake_bytes, MOST_WAKE_BYTES))
        if wake_bytes < SMALLEST_WAKE_BYTES:
            wake_bytes = 1
        if wake_bytes != self._wake_bytes:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
            self._wake_bytes = wake_bytes

    async def _give_turn(self) -> None:
        """Before anything is moved, for what was moved would be lost with a call that is cancelled then."""
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
        ) as error:  # TLS in the middle of a message of its own: both directions wait for the same
            raise ConnectionResetError("the other side stopped in the middle of a change of keys") from error

    def hold_for(self, frame_bytes: int) -> None:
        """Let the kernel hold unsent what suits frames of that length."""
        unsent_bytes = MOST_UNSENT_BYTES if frame_bytes <= FEWER_WAKES_UNSENT_BYTES else FEWER_WAKES_UNSENT_BYTES
        option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
        if unsent_bytes != self._unsent_bytes and option is not None and not self._is_closed:
            self._unsent_bytes = unsent_bytes
            with suppress(OSError):  # it has ended, which its own stream hears
                self._connection.setsockopt(socket.IPPROTO_TCP, option, unsent_bytes)

    def carry_calls(self) -> None:
        """Hold little unsent, so that a ping passes a long reply, and notice soon that the way is gone: no call asks for another."""
        for name, value in (("TCP_NOTSENT_LOWAT", RECORD_BYTES), ("TCP_USER_TIMEOUT", round(UNACKED_S * 1000))):
            option = getattr(socket, name, None)
            if option is not None:
                self._connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def look(self) -> PathStats | None:
        """What the kernel says of what we send; None where it says nothing."""
        option = getattr(socket, "TCP_INFO", None)
        if self._is_closed or option is None or sys.platform != "linux":
            return None
        try:
            told = self._connection.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size)
            if self._goes_by_losses is None:
                name = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                self._goes_by_losses = not name.startswith(_BEYOND_LOSSES)
        except OSError:
            return None
        if len(told) < _LEAST_TOLD_BYTES:
            return None
        told = told.ljust(_TCP_INFO.size, b"\0")
        unacked, rtt_us, num_again, acked_bytes, waiting_bytes, best_us, no_room_us, held_us = _TCP_INFO.unpack(told)
        best_s = min(rtt_us, best_us) / 1e6  # of a connection without one it is 2^32 - 1
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
        """Let the kernel send no faster than that; infinite for as fast as it likes."""
        rate = _UNPACED if bytes_per_s == inf else max(1, min(round(bytes_per_s), _UNPACED - 1))
        if rate != self._pace and not self._is_closed and sys.platform == "linux":
            self._pace = rate
            with suppress(OSError):  # it has ended, which its own stream hears
                self._connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", rate))

    @property
    def paced_bytes_per_s(self) -> float:
        """What the kernel holds it to, infinite where it does not."""
        return inf if self._pace == _UNPACED else float(self._pace)

    def close(self, *, is_reset: bool = False) -> None:
        """Close it; who waits in it fails. What was sent still arrives, unless it is a reset."""
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
    """Options of a connected socket. Its buffers are the kernel's to size: it measures the link, and a size that is set ends that."""
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
    """TLS over a connected socket, before its handshake. Takes the socket over, and closes it when this raises OSError."""
    try:
        prepare(connection)
        wrapped = context.wrap_socket(connection, server_side=is_server, do_handshake_on_connect=False)
    except OSError:
        connection.close()
        raise
    return TlsSocket(wrapped)
