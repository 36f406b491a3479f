from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from math import inf
from typing import cast

import pytest
import trio
import trio.testing

from averaging.network.direct.tls_socket import (
    MAX_RECORD_BYTES,
    MOST_WAKE_BYTES,
    RECORD_BYTES,
    RECORDS_AT_ONCE,
    SMALLEST_WAKE_BYTES,
    SO_MAX_PACING_RATE,
    TlsSocket,
)
from averaging.network.pacing.line_rate import PathStats


class _Connection:
    """Moves three bytes, and then wants the socket for the other direction."""

    def __init__(self, wanted: type[ssl.SSLError]) -> None:
        self._wanted = wanted
        self._has_moved = False

    def _moved(self) -> int:
        if self._has_moved:
            raise self._wanted
        self._has_moved = True
        return 3

    def send(self, _data: memoryview) -> int:
        return self._moved()

    def recv_into(self, _buffer: memoryview) -> int:
        return self._moved()


@pytest.mark.parametrize("wanted", [ssl.SSLWantReadError, ssl.SSLWantWriteError])
async def test_what_was_moved_is_told_before_the_socket_is_waited_for_again(wanted: type[ssl.SSLError]) -> None:
    """Otherwise a caller that is cancelled in a wait would send bytes twice, or lose them."""
    sending, receiving = (TlsSocket(cast("ssl.SSLSocket", _Connection(wanted))) for _ in range(2))
    assert await sending.send(memoryview(bytes(10)), 0) == 3
    assert await receiving.receive_into(memoryview(bytearray(10)), 0) == 3


class _Kernel:
    """Has nothing to read, and notes at how many bytes it is asked to say so when there is."""

    def __init__(self) -> None:
        self.wakes_at: list[int] = []

    def recv_into(self, _buffer: memoryview) -> int:
        raise ssl.SSLWantReadError

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.wakes_at.append(value)

    def fileno(self) -> int:
        return -1


@pytest.mark.parametrize(
    ("missing", "wakes_at"),
    [
        (1_000_000, [MOST_WAKE_BYTES]),
        (40_000, [40_000 - MAX_RECORD_BYTES]),
        (MAX_RECORD_BYTES + SMALLEST_WAKE_BYTES - 1, []),
        (4, []),
    ],
)
async def test_a_reader_is_woken_for_a_good_part_of_what_is_missing_never_for_more_than_the_kernel_will_get(
    missing: int, wakes_at: list[int]
) -> None:
    """A whole record less one byte may be in OpenSSL's hands already: waiting for those in the kernel would be for ever."""
    kernel = _Kernel()
    reading = TlsSocket(cast("ssl.SSLSocket", kernel))
    with pytest.raises(ValueError, match="descriptor"):  # there is no socket to wait for
        await reading.receive_into(memoryview(bytearray(missing)), 0)
    assert kernel.wakes_at == wakes_at


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=60.0)
        far, _ = server.accept()
        with near, far:
            far.settimeout(60.0)
            yield near, far


def _taken(far: socket.socket, num_bytes: int) -> None:
    while num_bytes:
        num_bytes -= len(far.recv(min(num_bytes, 1 << 20)))


def test_the_kernel_tells_what_was_acknowledged_what_waits_and_how_long_a_round_trip_takes(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    near, far = connected
    sending = TlsSocket(cast("ssl.SSLSocket", near))
    near.sendall(bytes(50_000))
    _taken(far, 50_000)
    near.setblocking(False)
    sent = 50_000
    while True:  # until nobody takes any more
        try:
            sent += near.send(bytes(1 << 16))
        except BlockingIOError:
            break
    full = sending.stats()
    assert full is not None
    assert 0 < full.waiting_bytes <= sent - full.acked_bytes
    assert not full.is_idle
    _taken(far, sent - 50_000)
    done = sending.stats()
    assert done is not None
    assert done.waiting_bytes == 0
    assert sent - (1 << 20) < done.acked_bytes <= sent + 1, (
        "the opening counts as one; the last may not be acknowledged yet"
    )
    assert 0.0 < done.best_rtt_s <= done.rtt_s < 1.0


def test_the_kernel_is_told_how_fast_it_may_send_and_only_when_that_has_changed(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    near, _ = connected
    sending = TlsSocket(cast("ssl.SSLSocket", near))
    before = near.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE)
    sending.pace(3_900_000.4)
    assert near.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == 3_900_000
    near.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 1_000_000)
    sending.pace(3_900_000.1)
    assert near.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == 1_000_000, "it was not asked again"
    sending.pace(inf)
    assert near.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == before


async def test_a_connection_that_is_closed_tells_nothing_and_is_not_paced(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    under_its_hands, by_itself = (TlsSocket(cast("ssl.SSLSocket", each)) for each in connected)
    connected[0].close()
    by_itself.close()
    for closed in (under_its_hands, by_itself):
        closed.pace(1000.0)
        assert closed.stats() is None


class _Reported:
    """A connection of which the kernel says this."""

    def __init__(self, info: bytes, control: bytes) -> None:
        self._info = info
        self._control = control

    def getsockopt(self, _level: int, option: int, num_bytes: int) -> bytes:
        return self._control if option == socket.TCP_CONGESTION else self._info[:num_bytes]


def _tcp_info(num_bytes: int) -> bytes:
    """As <linux/tcp.h> lays it out: each number stands where the kernel puts it."""
    info = bytearray(232)
    for place, form, value in (
        (24, "I", 3),  # tcpi_unacked
        (68, "I", 50_000),  # tcpi_rtt
        (100, "I", 7),  # tcpi_total_retrans
        (120, "Q", 123_456),  # tcpi_bytes_acked
        (144, "I", 4096),  # tcpi_notsent_bytes
        (148, "I", 40_000),  # tcpi_min_rtt
        (176, "Q", 5_000_000),  # tcpi_rwnd_limited: a reader that is slow
        (184, "Q", 250_000),  # tcpi_sndbuf_limited
    ):
        struct.pack_into(f"={form}", info, place, value)
    return bytes(info[:num_bytes])


@pytest.mark.parametrize(
    ("num_bytes", "control", "num_lost", "no_room_s", "held_s"),
    [
        (232, b"cubic\0", 7, 5.0, 0.25),
        (232, b"bbr\0", 0, 5.0, 0.25),
        (192, b"reno\0", 7, 5.0, 0.25),
        (152, b"cubic\0", 7, 0.0, 0.0),
    ],
    ids=["cubic", "bbr goes by no losses", "reno", "a kernel before 4.10"],
)
def test_the_kernel_tells_of_losses_of_a_receiver_without_room_and_of_a_buffer_that_was_full(
    num_bytes: int, control: bytes, num_lost: int, no_room_s: float, held_s: float
) -> None:
    look = TlsSocket(cast(ssl.SSLSocket, _Reported(_tcp_info(num_bytes), control))).stats()
    assert look == PathStats(123_456, 4096, False, 0.05, 0.04, num_lost, held_s, no_room_s)


def test_a_kernel_that_tells_less_than_is_needed_is_not_asked_on() -> None:
    assert TlsSocket(cast(ssl.SSLSocket, _Reported(_tcp_info(144), b"cubic\0"))).stats() is None


class _Records(socket.socket):
    """Reads records as OpenSSL does, the head and then as much of the rest as is there, but for the secrecy."""

    def __init__(self, near: socket.socket) -> None:
        super().__init__(fileno=near.detach())
        self.setblocking(False)
        self.held = b""
        self.content = b""

    def pending(self) -> int:
        return len(self.content)

    def recv_into(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self.content:
            head = self.held[:5]
            missing = 5 - len(head) if len(head) < 5 else 5 + struct.unpack(">H", head[3:])[0] - len(self.held)
            if not missing:
                self.content, self.held = self.held[5:-17], b""
                continue
            try:
                found = self.recv(missing)
            except BlockingIOError:
                raise ssl.SSLWantReadError from None
            if not found:
                return 0
            self.held += found
        taken, self.content = self.content[: len(buffer)], self.content[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)

    @property
    def wakes_at(self) -> int:
        """Told by the kernel."""
        return self.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def _record(content: bytes) -> bytes:
    return struct.pack(">BHH", 23, 0x303, len(content) + 17) + content + bytes(17)


def _in_records(content: bytes) -> bytes:
    parts = (content[begin : begin + RECORD_BYTES] for begin in range(0, len(content), RECORD_BYTES))
    return b"".join(map(_record, parts))


class _Filling:
    """A frame on its way in."""

    def __init__(self, reading: TlsSocket, num_bytes: int) -> None:
        self.reading = reading
        self.buffer = memoryview(bytearray(num_bytes))
        self.stop = 0
        self.num_calls = 0

    async def run(self) -> None:
        while self.stop < len(self.buffer):
            begin, self.stop = self.stop, await self.reading.receive_into(self.buffer, self.stop, is_whole=True)
            self.num_calls += 1
            if self.stop == begin:
                return


async def test_a_record_is_not_begun_before_it_is_there_and_a_frame_is_waited_for_to_its_last_byte(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    near, far = connected
    content = bytes(range(256)) * 200
    sent, records = _in_records(content), _Records(near)
    with records:
        filling = _Filling(TlsSocket(cast("ssl.SSLSocket", records)), len(content))
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                far.sendall(sent[:5_000])
                nursery.start_soon(filling.run)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert (filling.stop, records.held) == (0, b""), "OpenSSL has nothing of it"
                assert records.wakes_at == len(sent), "it is shorter than what the kernel may hold"
                far.sendall(sent[5_000:])
        assert bytes(filling.buffer) == content
        assert filling.num_calls == 1


async def test_of_a_word_of_which_the_record_goes_on_the_whole_record_is_waited_for(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    near, far = connected
    sent, records = _record(bytes(RECORD_BYTES)), _Records(near)
    with records:
        filling = _Filling(TlsSocket(cast("ssl.SSLSocket", records)), 4)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                far.sendall(sent[:100])
                nursery.start_soon(filling.run)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert (filling.stop, records.held, records.wakes_at) == (0, b"", len(sent))
                far.sendall(sent[100:])
        assert (filling.stop, records.pending()) == (4, RECORD_BYTES - 4)


@pytest.mark.parametrize("there", [0, 3, 5, 5_000, 16_500])
async def test_an_end_in_the_middle_of_a_record_is_heard_of(
    connected: tuple[socket.socket, socket.socket], there: int
) -> None:
    near, far = connected
    records = _Records(near)
    with records:
        filling = _Filling(TlsSocket(cast("ssl.SSLSocket", records)), 30_000)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                far.sendall(_in_records(bytes(30_000))[:there])
                nursery.start_soon(filling.run)
                await trio.testing.wait_all_tasks_blocked(0.01)
                far.close()
        assert filling.stop == (RECORD_BYTES if there > RECORD_BYTES else 0)


async def test_records_that_are_shorter_than_they_might_be_come_whole_as_well(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    near, far = connected
    content = bytes(range(256)) * 40
    records = _Records(near)
    with records:
        filling = _Filling(TlsSocket(cast("ssl.SSLSocket", records)), len(content))
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(filling.run)
                for begin in range(0, len(content), 100):
                    far.sendall(_record(content[begin : begin + 100]))
                    await trio.lowlevel.checkpoint()
        assert bytes(filling.buffer) == content


async def test_others_have_their_turn_while_there_is_always_something_to_read(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    near, far = connected
    records = _Records(near)
    far.sendall(b"".join(_record(bytes(10)) for _ in range(20 * RECORDS_AT_ONCE)))
    num_turns = 0

    async def count() -> None:
        nonlocal num_turns
        while True:
            await trio.lowlevel.checkpoint()
            num_turns += 1

    with records:
        reading, buffer = TlsSocket(cast("ssl.SSLSocket", records)), memoryview(bytearray(10))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            for _ in range(20 * RECORDS_AT_ONCE):
                assert await reading.receive_into(buffer, 0) == 10
            nursery.cancel_scope.cancel()
    assert 15 <= num_turns <= 21, "the two may come in either order each time"


async def test_who_is_cancelled_already_moves_nothing(connected: tuple[socket.socket, socket.socket]) -> None:
    near, far = connected
    records = _Records(near)
    far.sendall(_record(b"hello"))
    with records:
        reading, buffer = TlsSocket(cast("ssl.SSLSocket", records)), memoryview(bytearray(5))
        with trio.CancelScope() as scope:
            scope.cancel()
            await reading.receive_into(buffer, 0)
        assert scope.cancelled_caught
        assert bytes(buffer) == bytes(5)
        assert await reading.receive_into(buffer, 0) == 5
        assert bytes(buffer) == b"hello"
