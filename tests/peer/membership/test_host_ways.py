"""Trying the host's ports against real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import Final

import pytest
import structlog.testing
import trio
import trio.testing

from averaging.data.shard_exchange import SHARD_CHANNEL, serve_shards
from averaging.data.shards import TokenizerEntry
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.interfaces import Stream
from peer.membership import host_ways
from peer.membership.host_ways import AsMember, HostWays, watch_host_ports
from peer.membership.host_ways_core import Purpose, Tried
from protocol.errors import PotluckError
from protocol.ids import PeerId
from tests.averaging.network.direct_world import ALICE, BOB, CA, World, credential_of

GREETING: Final = b"\x13/multistream/1.0.0\n"
PORT: Final = BulkAddress("10.9.0.2", 4101)


def _ways(host: PeerId, peers: Sequence[int] = (), data: Sequence[int] = ()) -> HostWays:
    local = [tuple(BulkAddress("127.0.0.1", port) for port in ports) for ports in (peers, data)]
    return HostWays(host, CA.certificate_der, local[0], local[1])


@asynccontextmanager
async def _saying(answer: bytes) -> AsyncIterator[int]:
    """A server that answers like this; its port."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_port_for_peers_answers_as_libp2p_does_or_the_reason_is_given() -> None:
    async with _saying(GREETING) as good, _saying(b"HTTP/1.1 400\r\n\r\n") as other, _saying(b"") as silent:
        ways = _ways(ALICE.peer_id, [good, other, silent])
        assert [each.reason for each in await ways.try_all()] == [
            "",
            "something else answers there",
            "something else answers there",
        ]
    assert [each.reason for each in await _ways(ALICE.peer_id, [good]).try_all()] == ["Connection refused"]


async def test_port_that_swallows_packets_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_ways, "TRY_WITHIN_S", 0.1)

    async def serve(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        found = await _ways(ALICE.peer_id, [port], [port]).try_all()
        nursery.cancel_scope.cancel()
    assert [(each.purpose, each.reason) for each in found] == [
        (Purpose.PEERS, "no answer in 0.1 s"),
        (Purpose.DATA, "no answer in 0.1 s"),
    ]


async def test_port_for_data_shows_the_hosts_certificate_to_a_newcomer() -> None:
    async with World().open(ALICE) as alice:
        (right,) = await _ways(ALICE.peer_id, (), [alice.port]).try_all()
        (wrong,) = await _ways(BOB.peer_id, (), [alice.port]).try_all()
    assert (right.purpose, right.reason) == (Purpose.DATA, "")
    assert "another peer answers there" in wrong.reason
    (away,) = await _ways(ALICE.peer_id, (), [alice.port]).try_all()
    assert away.reason


async def test_member_is_given_the_first_bytes_of_the_data_or_told_why_not() -> None:
    data = b"some text" * 1000
    entry = TokenizerEntry(sha256=sha256(data).hexdigest(), num_bytes=len(data), vocab_size=300, end=0)
    member = AsMember(credential_of(BOB), entry)
    held = {sha256(data).digest(): data}

    async def read(shard_hash: bytes) -> bytes | None:
        return held.get(shard_hash)

    async def is_member(_: PeerId) -> bool:
        return True

    async def give(peer: PeerId, stream: Stream) -> None:
        with suppress(PotluckError):  # the caller takes the first bytes and leaves
            await serve_shards(read, is_member)(peer, stream)

    async with World().open(ALICE) as alice:
        ways = replace(_ways(ALICE.peer_id, (), [alice.port]), member=member)
        (unserved,) = await ways.try_all()
        alice.handlers[SHARD_CHANNEL] = give
        (given,) = await ways.try_all()
        held.clear()
        (missing,) = await ways.try_all()
    assert unserved.reason
    assert given.reason == ""
    assert "does not give its data" in missing.reason


def _answering(
    monkeypatch: pytest.MonkeyPatch, reasons: Callable[[int], str], took_s: float = host_ways.TRY_WITHIN_S
) -> HostWays:
    tries = list[int]()

    async def try_all(_: HostWays) -> tuple[Tried, ...]:
        tries.append(1)
        await trio.sleep(took_s)
        return (Tried(Purpose.PEERS, PORT, reasons(len(tries))),)

    monkeypatch.setattr(HostWays, "try_all", try_all)
    return _ways(ALICE.peer_id)


async def test_closed_port_is_told_within_ten_seconds_and_its_answer_ends_it(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    ways, shown = _answering(monkeypatch, lambda number: "no answer" if number < 5 else ""), list[tuple[float, str]]()
    begun_s = trio.current_time()
    with structlog.testing.capture_logs() as logs:
        await watch_host_ports(ways, "10.9.0.2:4100", lambda text: shown.append((trio.current_time() - begun_s, text)))
    (at_s, text), (_, cleared) = shown
    assert at_s <= 10.0
    assert "the host answers at 10.9.0.2:4100, but not at 10.9.0.2:4101" in text
    assert cleared == ""
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("host_ports_do_not_answer", "warning"),
        ("host_ports_answer", "info"),
    ]


async def test_host_whose_node_needs_a_moment_is_not_called_closed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    ways, shown = _answering(monkeypatch, lambda number: "refused" if number < 2 else "", 0.0), list[str]()
    await watch_host_ports(ways, "10.9.0.2:4100", shown.append)
    assert shown == []
