from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import structlog.testing
import trio
import trio.testing

from averaging.network.libp2p.libp2p_network import (
    Libp2pNetwork,
    Libp2pStream,
    NetworkOptions,
    _Supervisor,
    open_libp2p_network,
)
from averaging.network.libp2p.libp2p_session import CALL_PROTOCOL, MAX_TURNED_AWAY_PER_PEER
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.libp2p.socket_folder import SOCKET_PREFIX, socket_roots
from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.seams.asyncio_thread import AsyncioThread, open_asyncio_thread
from averaging.network.seams.call_limits import MAX_CALLS_PER_PEER
from averaging.network.seams.directory import seal_record, signed_record_rule
from averaging.network.seams.frames import Status, write_frame
from averaging.network.seams.interfaces import Stream, Way
from protocol.errors import (
    CallTimeout,
    ConnectionReset,
    MachineError,
    PeerUnreachable,
    PotluckError,
    RemoteProtocolError,
    StorageError,
)
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId
from tests.averaging.network.counting_proxy import open_counting_proxy
from tests.averaging.network.direct_world import options_of

if TYPE_CHECKING:
    from averaging.network.libp2p.libp2p_stream import RawStream

RUN = RunId(bytes(32))
RULE = signed_record_rule(Ed25519Verifier(), RUN)
LIBP2P_BYTES = 100_000
CALL_BYTES = 60
"""Bytes that TLS and the heads add to one direct call, each way."""

ALICE, BOB, CAROL = (Identity(bytes([20 + i]) * 32) for i in range(3))


def _options(folder: Path, identity: Identity, listen: str = "/ip4/127.0.0.1/tcp/0") -> NetworkOptions:
    file = folder / identity.peer_id
    file.write_bytes(identity.libp2p_private_key_bytes())
    file.chmod(0o600)
    return NetworkOptions(P2pdOptions(file, listen=(listen,)), RULE)


@asynccontextmanager
async def _open(thread: AsyncioThread, options: NetworkOptions, identity: Identity) -> AsyncIterator[Libp2pNetwork]:
    async with open_libp2p_network(thread, options, identity.peer_id, unix_s=time.time) as network:
        yield network


@asynccontextmanager
async def _pair(folder: Path) -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork]]:
    async with (
        open_asyncio_thread() as thread,
        _open(thread, _options(folder, ALICE), ALICE) as alice,
        _open(thread, _options(folder, BOB), BOB) as bob,
    ):
        await bob.add_addresses(alice.addresses())
        yield alice, bob


async def _echo(sender: PeerId, request: bytes) -> bytes:
    return request


async def _wait_restarted(network: Libp2pNetwork, old_pid: int) -> None:
    with trio.fail_after(120):
        while network.p2pd_pid in (old_pid, None):
            await trio.sleep(0.01)


async def test_p2pd_comes_back_with_its_identity_port_handlers_and_records(tmp_path: Path) -> None:
    async with _pair(tmp_path) as (alice, bob):
        alice.serve_calls("echo", _echo)
        await bob.call(alice.peer_id, "echo", b"before", timeout_s=60)
        expires_s = time.time() + 60
        value = seal_record(ALICE, RUN, 1, expires_s, b"here")
        assert await alice.publish("peers", alice.peer_id, value, expires_unix_s=expires_s)
        addresses, pid = alice.addresses(), alice.p2pd_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await _wait_restarted(alice, pid)
        assert alice.addresses() == addresses
        started = alice.p2pd_pid
        await bob.add_addresses(alice.addresses())
        assert await bob.call(alice.peer_id, "echo", b"after", timeout_s=60) == b"after"
        with trio.fail_after(60):
            while not await bob.lookup("peers"):
                await trio.sleep(0.05)
        assert alice.p2pd_pid == started, "one restart"


async def test_the_death_of_our_own_p2pd_fails_calls_in_flight_without_blaming_the_peer(tmp_path: Path) -> None:
    async with _pair(tmp_path) as (alice, bob):
        began = trio.Event()

        async def hold(sender: PeerId, request: bytes) -> bytes:
            began.set()
            await trio.sleep_forever()

        async def kill_own() -> None:
            await began.wait()
            pid = bob.p2pd_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        alice.serve_calls("hold", hold)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_own)
            with trio.fail_after(60), pytest.raises(CallTimeout, match="our own"):
                await bob.call(alice.peer_id, "hold", b"", timeout_s=60)


async def test_a_restart_that_is_cut_short_ends_session_and_p2pd_all_the_same(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    stopped: list[str] = []

    async def run(function: Callable[[], Awaitable[None]], timeout_s: float) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.move_on_after(timeout_s):
            await function()

    async def close() -> None:
        stopped.append("session")
        await trio.sleep_forever()

    async def stop() -> None:
        stopped.append("p2pd")

    network: Any = SimpleNamespace(thread=SimpleNamespace(run=run), detach=lambda: None)
    supervisor = _Supervisor(network, _options(tmp_path, ALICE), tmp_path)
    session: Any = SimpleNamespace(close=close)
    process: Any = SimpleNamespace(stop=stop)
    supervisor._session, supervisor._process = session, process
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        nursery.start_soon(supervisor.stop)
    assert stopped == ["session", "p2pd"]


async def test_peers_that_know_only_a_third_find_each_other(tmp_path: Path) -> None:
    async with _pair(tmp_path) as (alice, bob), _open(alice.thread, _options(tmp_path, CAROL), CAROL) as carol:
        await carol.add_addresses(alice.addresses())
        carol.serve_calls("echo", _echo)
        with trio.fail_after(120):
            while (reply := await _reply_of_whoever_is_known(bob, carol.peer_id)) is None:
                await trio.sleep(0.05)
        assert reply == b"x"


async def _reply_of_whoever_is_known(network: Libp2pNetwork, peer: PeerId) -> bytes | None:
    """None while the third does not know it: who has connected to a peer is known there only once both have said who they are."""
    try:
        return await network.call(peer, "echo", b"x", timeout_s=60)
    except PeerUnreachable:
        return None


async def test_a_peer_that_comes_back_while_the_host_is_dead_finds_the_others_by_their_addresses(
    tmp_path: Path,
) -> None:
    async with open_asyncio_thread() as thread, _open(thread, _options(tmp_path, BOB), BOB) as bob:
        carols = _options(tmp_path, CAROL)
        async with _open(thread, _options(tmp_path, ALICE), ALICE) as host, _open(thread, carols, CAROL) as carol:
            await bob.add_addresses(host.addresses())
            await carol.add_addresses(host.addresses())
            dead = host.addresses()
        expires_s = time.time() + 60
        value = seal_record(BOB, RUN, 1, expires_s, b"here")
        assert await bob.publish("peers", bob.peer_id, value, expires_unix_s=expires_s)
        async with _open(thread, replace(carols, initial_peers=(*dead, *bob.addresses())), CAROL) as carol:
            assert [entry.subkey for entry in await carol.lookup("peers")] == [bob.peer_id]
        with structlog.testing.capture_logs() as logs:
            async with _open(thread, replace(carols, initial_peers=dead), CAROL):
                pass
        (warning,) = [entry for entry in logs if entry["event"] == "no_known_peer_answers"]
        assert warning["log_level"] == "warning"
        assert warning["reason"].startswith(f"tried {len(dead)}, first {min(a.rpartition('/p2p/')[0] for a in dead)};")


async def test_a_peer_that_is_not_admitted_reaches_the_open_channels_only(tmp_path: Path) -> None:
    asked: list[PeerId] = []

    async def admits(peer: PeerId) -> bool:
        asked.append(peer)
        return peer != BOB.peer_id

    async def serve(_peer: PeerId, _stream: Stream) -> None:
        pass

    async with open_asyncio_thread() as thread:
        picky = replace(_options(tmp_path, ALICE), admits=admits, open_channels=frozenset({"door"}))
        async with _open(thread, picky, ALICE) as alice, _open(thread, _options(tmp_path, BOB), BOB) as bob:
            alice.serve_calls("echo", _echo)
            alice.serve_calls("door", _echo)
            alice.serve_streams("bulk", serve)
            await bob.add_addresses(alice.addresses())
            assert await bob.call(alice.peer_id, "door", b"x", timeout_s=60) == b"x"
            assert asked == []
            with pytest.raises(RemoteProtocolError, match="no credential of this run"):
                await bob.call(alice.peer_id, "echo", b"x", timeout_s=5)
            with pytest.raises(RemoteProtocolError):
                await bob.open_stream(alice.peer_id, "bulk", timeout_s=5)
            assert asked == [BOB.peer_id]  # once for both
            async with _open(thread, _options(tmp_path, CAROL), CAROL) as carol:
                await carol.add_addresses(alice.addresses())
                assert await carol.call(alice.peer_id, "echo", b"x", timeout_s=60) == b"x"


async def test_an_answer_that_cannot_be_had_admits_nobody_and_is_asked_for_again(tmp_path: Path) -> None:
    has_failed = False

    async def admits(_: PeerId) -> bool:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise StorageError("a ledger that cannot be read", "one that can")
        return True

    async with (
        open_asyncio_thread() as thread,
        _open(thread, replace(_options(tmp_path, ALICE), admits=admits), ALICE) as alice,
        _open(thread, _options(tmp_path, BOB), BOB) as bob,
    ):
        alice.serve_calls("echo", _echo)
        await bob.add_addresses(alice.addresses())
        with pytest.raises(PeerUnreachable):
            await bob.call(alice.peer_id, "echo", b"x", timeout_s=5)
        assert await bob.call(alice.peer_id, "echo", b"x", timeout_s=60) == b"x"


async def test_a_peer_with_too_many_calls_open_is_told_to_wait(tmp_path: Path) -> None:
    async with _pair(tmp_path) as (alice, bob):
        num_open = 0

        async def hold(sender: PeerId, request: bytes) -> bytes:
            nonlocal num_open
            num_open += 1
            await trio.sleep_forever()

        async def call() -> None:
            with trio.move_on_after(10):
                await bob.call(alice.peer_id, "hold", b"", timeout_s=20)

        alice.serve_calls("hold", hold)
        alice.serve_calls("echo", _echo)
        await bob.call(alice.peer_id, "echo", b"let in", timeout_s=60)  # a stranger has fewer places
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_CALLS_PER_PEER):
                nursery.start_soon(call)
            with trio.fail_after(60):
                while num_open < MAX_CALLS_PER_PEER:
                    await trio.sleep(0.01)
            reported: list[PotluckError | bytes] = []

            async def take(_peer: PeerId, reply: bytes | PotluckError) -> None:
                reported.append(reply)

            async with trio.open_nursery() as others:
                for _ in range(MAX_TURNED_AWAY_PER_PEER):
                    others.start_soon(partial(bob.call_each, timeout_s=20, took=take), (alice.peer_id,), "hold", b"")
            assert len(reported) == MAX_TURNED_AWAY_PER_PEER
            assert all(isinstance(reply, CallTimeout) and "is busy" in reply.one_line() for reply in reported)
            nursery.cancel_scope.cancel()


async def test_the_end_of_a_call_is_left_to_the_caller(tmp_path: Path) -> None:
    """p2pd may make a reset of an end that is ours, and a reset overtakes the reply (libp2p_stream.py)."""
    async with _pair(tmp_path) as (alice, bob):
        alice.serve_calls("echo", _echo)

        async def ends_before_us() -> bool:
            session = bob._session
            assert session is not None
            stream = await session.daemon.open_stream(alice.peer_id, CALL_PROTOCOL)
            try:
                await write_frame(stream.writer, b"echo")
                await write_frame(stream.writer, b"said")
                assert await stream.frames.read_status() is Status.FINE
                assert await stream.frames.read(100) == b"said"
                async with asyncio.timeout(0.3):
                    return not await stream.frames._reader.read(1)
            except TimeoutError:
                return False
            finally:
                stream.writer.close()

        assert not await bob.thread.run(ends_before_us, timeout_s=10)


async def test_a_claim_of_four_gibibytes_is_dropped_before_it_is_read(tmp_path: Path) -> None:
    async with _pair(tmp_path) as (alice, bob):
        alice.serve_calls("echo", _echo)

        async def claim() -> bytes:
            session = bob._session
            assert session is not None
            stream = await session.daemon.open_stream(alice.peer_id, CALL_PROTOCOL)
            stream.writer.write(b"\x00\x00\x00\x04echo\xff\xff\xff\xfe" + bytes(1000))
            try:
                return await stream.frames._reader.read()
            finally:
                stream.writer.close()

        assert await bob.thread.run(claim, timeout_s=60) == b""
        assert await bob.call(alice.peer_id, "echo", b"x", timeout_s=60) == b"x"


async def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = _options(tmp_path, ALICE, f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}")
        async with open_asyncio_thread() as thread:
            with pytest.raises(MachineError, match="p2pd did not start"):
                async with _open(thread, options, ALICE):
                    pass


async def test_an_identity_file_of_another_peer_is_refused(tmp_path: Path) -> None:
    async with open_asyncio_thread() as thread:
        with pytest.raises(MachineError, match="identity"):
            async with _open(thread, _options(tmp_path, ALICE), BOB):
                pass


async def test_nothing_is_left_after_closing(tmp_path: Path) -> None:
    async with _pair(tmp_path) as (alice, bob):
        pids = [alice.p2pd_pid, bob.p2pd_pid]
        folders = {
            path for path in socket_roots(tmp_path)[0].glob(f"{SOCKET_PREFIX}*") if (path / "p2pd.sock").exists()
        }
    assert not [pid for pid in pids if pid is not None and Path(f"/proc/{pid}").exists()]
    assert len([folder for folder in folders if not folder.exists()]) >= 2


async def test_a_connection_that_breaks_during_calls_of_libp2p_is_no_death_and_the_next_call_makes_another(
    tmp_path: Path,
) -> None:
    """A keeper of lanes whose member's line was cut for a moment sees a reset, then an answer; never a refusal."""
    async with (
        open_asyncio_thread() as thread,
        _open(thread, _options(tmp_path, ALICE), ALICE) as alice,
        _open(thread, _options(tmp_path, BOB), BOB) as bob,
    ):
        (address,) = alice.addresses()
        port, began = address.split("/")[4], trio.Event()

        async def hold(_peer: PeerId, _request: bytes) -> bytes:
            began.set()
            await trio.sleep_forever()
            raise AssertionError

        alice.serve_calls("hold", hold)
        alice.serve_calls("echo", _echo)
        async with open_counting_proxy(int(port)) as proxy:
            await bob.add_addresses([address.replace(f"/tcp/{port}/", f"/tcp/{proxy.port}/")])
            assert (await bob.call(alice.peer_id, "echo", b"here", timeout_s=60)).endswith(b"here")
            assert proxy.connected == 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_after, began, proxy.break_connections)
                with trio.fail_after(60), pytest.raises(ConnectionReset):
                    await bob.call(alice.peer_id, "hold", b"", timeout_s=60)
            # over a new connection, whoever of the two makes it first
            assert (await bob.call(alice.peer_id, "echo", b"again", timeout_s=60)).endswith(b"again")


async def _after(event: trio.Event, then: Callable[[], None]) -> None:
    await event.wait()
    then()


async def test_what_is_counted_is_what_the_sockets_carry_but_for_what_libp2p_says_itself(tmp_path: Path) -> None:
    async with (
        open_asyncio_thread() as thread,
        _open(thread, _options(tmp_path, ALICE), ALICE) as alice,
        _open(thread, _options(tmp_path, BOB), BOB) as bob,
    ):
        (address,) = alice.addresses()
        port = address.split("/")[4]
        done = trio.Event()

        async def collect(_peer: PeerId, stream: Stream) -> None:
            while await stream.receive_frame() is not None:
                pass
            done.set()

        alice.serve_streams("collect", collect)
        alice.serve_calls("echo", _echo)
        async with open_counting_proxy(int(port)) as proxy:
            await bob.add_addresses([address.replace(f"/tcp/{port}/", f"/tcp/{proxy.port}/")])
            await bob.call(alice.peer_id, "echo", bytes(200_000), timeout_s=60)
            stream = await bob.open_stream(alice.peer_id, "collect", timeout_s=60)
            for _ in range(8):
                await stream.send_frame(bytes(1 << 20))
            await stream.aclose()
            with trio.fail_after(120):
                await done.wait()
            reported = bob.traffic()
            assert (reported.bytes_up, reported.bytes_down) == (8 * (1 << 20) + 200_000, 200_000)
            assert reported.bytes_up < proxy.bytes_up < 1.01 * reported.bytes_up + LIBP2P_BYTES
            assert reported.bytes_down < proxy.bytes_down < 1.01 * reported.bytes_down + LIBP2P_BYTES
            assert alice.traffic().bulk_bytes_down == reported.bulk_bytes_up


async def test_what_is_counted_of_direct_calls_is_what_the_sockets_carry_but_for_tls_and_heads(tmp_path: Path) -> None:
    async def drop(_peer: PeerId, stream: Stream) -> None:
        while await stream.receive_frame() is not None:
            pass

    async with (
        open_asyncio_thread() as thread,
        _open(thread, replace(_options(tmp_path, ALICE), direct=options_of(ALICE, RUN)), ALICE) as alice,
        _open(thread, replace(_options(tmp_path, BOB), direct=options_of(BOB, RUN)), BOB) as bob,
    ):
        assert alice.direct is not None
        assert bob.direct is not None
        assert alice.direct.port is not None
        alice.serve_streams("drop", drop)
        alice.serve_calls("echo", _echo)
        async with open_counting_proxy(alice.direct.port) as proxy:
            alice.direct.port = proxy.port
            await bob.add_addresses(alice.addresses())
            await (await bob.open_stream(alice.peer_id, "drop", timeout_s=60)).aclose()
            with trio.fail_after(120):
                while bob.direct.calls.live(alice.peer_id) is None:
                    await bob.call(alice.peer_id, "echo", b"", timeout_s=60)
                    await trio.sleep(0.01)
            counted, up, down = bob.traffic(), proxy.bytes_up, proxy.bytes_down
            for size in (200_000, *[100] * 20):
                await bob.call(alice.peer_id, "echo", bytes(size), timeout_s=60)
            reported = bob.traffic()
            sent = reported.control_bytes_up - counted.control_bytes_up
            received = reported.control_bytes_down - counted.control_bytes_down
            assert (sent, received) == (202_000, 202_000)
            assert sent < proxy.bytes_up - up < 1.01 * sent + 21 * CALL_BYTES
            assert received < proxy.bytes_down - down < 1.01 * received + 21 * CALL_BYTES


async def test_bulk_goes_direct_and_where_the_port_is_closed_over_libp2p(tmp_path: Path) -> None:
    async def serve(_peer: PeerId, stream: Stream) -> None:
        while (frame := await stream.receive_frame()) is not None:
            await stream.send_frame(frame)

    async def ways(opener: Libp2pNetwork, server: Libp2pNetwork) -> set[Way]:
        before = {count.kind.way: count.bytes_up for count in opener.traffic().bulk}
        stream = await opener.open_stream(server.peer_id, "bulk", timeout_s=60)
        await stream.send_frame(b"there")
        assert await stream.receive_frame() == b"there"
        await stream.aclose()
        return {c.kind.way for c in opener.traffic().bulk if c.bytes_up > before.get(c.kind.way, 0)}

    async with (
        open_asyncio_thread() as thread,
        _open(thread, replace(_options(tmp_path, ALICE), direct=options_of(ALICE, RUN)), ALICE) as alice,
        _open(thread, replace(_options(tmp_path, BOB), direct=options_of(BOB, RUN)), BOB) as bob,
    ):
        await bob.add_addresses(alice.addresses())
        for network in (alice, bob):
            network.serve_streams("bulk", serve)
        assert await ways(bob, alice) == {Way.DIRECT}
        assert await ways(alice, bob) == {Way.DIRECT}
        with socket.create_server(("127.0.0.1", 0)) as server:
            closed_port = server.getsockname()[1]
        assert alice.direct is not None
        assert bob.direct is not None
        alice.direct.port = closed_port
        bob.direct.forget(alice.peer_id)
        assert await ways(bob, alice) == {Way.LIBP2P}
        assert await ways(alice, bob) == {Way.DIRECT}


async def test_a_frame_that_was_held_back_by_the_owners_cap_is_not_lost_when_its_receiver_is_cancelled() -> None:
    frames = [b"a" * 400_000, b"next"]

    async def receive() -> bytes:
        return frames.pop(0)

    lane, raw = BulkLane(), SimpleNamespace(remote=BOB.peer_id, receive=receive)
    lane.cap(None, 100_000.0)
    async with open_asyncio_thread() as thread:
        stream = Libp2pStream(thread, lane, cast("RawStream", raw), "bulk")
        with trio.move_on_after(0.2) as scope:
            await stream.receive_frame()
        assert scope.cancelled_caught
        lane.cap(None, None)
        assert await stream.receive_frame() == b"a" * 400_000
        assert await stream.receive_frame() == b"next"
    assert lane.tally.bytes_down == 400_004, "counted once"
