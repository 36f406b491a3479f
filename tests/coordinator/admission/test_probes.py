"""The coordinator's own connections: on loopback, where a port answers or refuses at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from averaging.network.seams.clocks import SystemClock
from coordinator.admission.probe_core import CALLS_WITHIN
from coordinator.admission.probes import MAX_AT_ONCE, Probes
from protocol.errors import RemoteProtocolError, TemporaryError
from protocol.host.calls import DIAL_BACK_WITHIN_S, MAX_PROBE_DOWN_BYTES, MAX_PROBE_UP_BYTES
from tests.virtual import VirtualClock

NONCE = b"one nonce of 16."
LOOPBACK = "127.0.0.1"


async def test_caller_whose_port_says_its_nonce_is_reached() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(NONCE)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        port = listeners[0].socket.getsockname()[1]
        assert await Probes(SystemClock()).is_reached(LOOPBACK, port, NONCE) is True
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "words", [b"another of 16 by", NONCE[:-1], b"", None], ids=["other", "short", "eof", "refused"]
)
async def test_no_takes_the_same_time_whatever_the_port_does_and_nothing_is_sent_there(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object, words: bytes | None
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()

    async def dial(host: str, port: int) -> trio.abc.HalfCloseableStream:
        assert (host, port) == ("192.0.2.1", 4001)
        if words is None:
            raise OSError
        await theirs.send_all(words)
        await theirs.send_eof()
        return ours

    monkeypatch.setattr(trio, "open_tcp_stream", dial)
    began_s = trio.current_time()
    assert await Probes(VirtualClock()).is_reached("192.0.2.1", 4001, NONCE) is False
    assert trio.current_time() - began_s == pytest.approx(DIAL_BACK_WITHIN_S)
    await ours.aclose()
    assert await theirs.receive_some(1000) == b""


@pytest.mark.parametrize(
    ("host", "port", "nonce"), [("", 1, NONCE), ("h", 0, NONCE), ("h", 65536, NONCE), ("h", 1, b"")]
)
async def test_request_without_its_parts_is_refused(host: str, port: int, nonce: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        await Probes(VirtualClock()).is_reached(host, port, nonce)


async def test_silent_port_is_given_up_and_only_so_many_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    async def never(_host: str, _port: int) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    probes, results = Probes(VirtualClock()), []

    async def ask(number: int) -> None:
        results.append(await probes.is_reached(f"10.0.0.{number}", 1, NONCE))

    async with trio.open_nursery() as nursery:
        began_s = trio.current_time()
        for number in range(MAX_AT_ONCE):
            nursery.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(TemporaryError, match="under way"):
            await probes.is_reached("10.0.1.0", 1, NONCE)
    assert results == [False] * MAX_AT_ONCE
    assert trio.current_time() - began_s == pytest.approx(DIAL_BACK_WITHIN_S)
    assert await probes.is_reached("10.0.1.0", 1, NONCE) is False


async def test_one_caller_may_not_look_at_many_ports(monkeypatch: pytest.MonkeyPatch, autojump_clock: object) -> None:
    dialled: list[int] = []

    async def refused(_host: str, port: int) -> None:
        dialled.append(port)
        raise OSError

    monkeypatch.setattr(trio, "open_tcp_stream", refused)
    probes = Probes(VirtualClock())
    for port in range(1, CALLS_WITHIN + 1):
        assert await probes.is_reached(LOOPBACK, port, NONCE) is False
    with pytest.raises(TemporaryError, match="try again in"):
        await probes.is_reached(LOOPBACK, 99, NONCE)
    assert dialled == list(range(1, CALLS_WITHIN + 1))


async def test_bytes_to_be_timed_are_bounded_by_the_call(autojump_clock: object) -> None:
    probes = Probes(VirtualClock())
    assert len(probes.pass_bytes(LOOPBACK, bytes(MAX_PROBE_UP_BYTES), MAX_PROBE_DOWN_BYTES)) == MAX_PROBE_DOWN_BYTES
    for up, down in ((MAX_PROBE_UP_BYTES + 1, 0), (0, MAX_PROBE_DOWN_BYTES + 1)):
        with pytest.raises(RemoteProtocolError):
            probes.pass_bytes(LOOPBACK, bytes(up), down)
    with pytest.raises(TemporaryError, match="somebody else"):
        probes.pass_bytes("10.0.0.1", b"", 1)
