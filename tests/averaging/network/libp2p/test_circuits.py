from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from averaging.network.libp2p.circuits import RELAY_CHECK_S, circuits_through, keep_place
from averaging.network.libp2p.libp2p_network import Libp2pNetwork, NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.asyncio_thread import AsyncioThread, open_asyncio_thread
from averaging.network.seams.directory import signed_record_rule
from averaging.network.seams.interfaces import Stream
from protocol.errors import CallTimeout, PeerUnreachable, TransportError
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

RELAY, ALICE, BOB, NOBODY = (Identity(bytes([40 + i]) * 32) for i in range(4))
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{RELAY.peer_id}"


async def _open(
    stack: AsyncExitStack, thread: AsyncioThread, folder: Path, identity: Identity, options: P2pdOptions
) -> Libp2pNetwork:
    file = folder / identity.peer_id
    file.write_bytes(identity.libp2p_private_key_bytes())
    file.chmod(0o600)
    rule = signed_record_rule(Ed25519Verifier(), RunId(bytes(32)))
    network = NetworkOptions(replace(options, identity_file=file), rule, initial_peers=options.relays)
    return await stack.enter_async_context(open_libp2p_network(thread, network, identity.peer_id, unix_s=time.time))


async def _eventually(call: Callable[[], Awaitable[bytes]]) -> bytes:
    """A place at the relay is there a moment after the start."""
    with trio.fail_after(60):
        while True:
            try:
                return await call()
            except TransportError:
                await trio.sleep(0.05)


async def test_peers_to_which_nobody_can_connect_talk_through_a_relay_and_learn_who_is_gone(tmp_path: Path) -> None:
    async with open_asyncio_thread() as thread, AsyncExitStack() as stack:
        relay = await _open(stack, thread, tmp_path, RELAY, P2pdOptions(tmp_path, serves_circuits=True))
        hidden = P2pdOptions(tmp_path, accepts_inbound=False, relays=relay.addresses(), is_hidden=True)
        alice, bob = [await _open(stack, thread, tmp_path, who, hidden) for who in (ALICE, BOB)]

        async def echo(sender: PeerId, request: bytes) -> bytes:
            return sender.encode() + request

        async def swallow(sender: PeerId, stream: Stream) -> None:
            while (frame := await stream.receive_frame()) is not None:
                await stream.send_frame(frame)

        bob.serve_calls("echo", echo)
        bob.serve_streams("bulk", swallow)
        reply = await _eventually(lambda: alice.call(BOB.peer_id, "echo", b"!", timeout_s=10))
        assert reply == ALICE.peer_id.encode() + b"!"
        stream = await alice.open_stream(BOB.peer_id, "bulk", timeout_s=10)
        await stream.send_frame(bytes(100_000))
        assert await stream.receive_frame() == bytes(100_000)
        await stream.aclose()
        with pytest.raises(PeerUnreachable):
            await alice.call(NOBODY.peer_id, "echo", b"", timeout_s=10)


async def test_a_relay_that_is_away_does_not_make_the_peers_behind_it_gone(tmp_path: Path) -> None:
    async with open_asyncio_thread() as thread, AsyncExitStack() as stack:
        away = f"/ip4/127.0.0.1/tcp/1/p2p/{RELAY.peer_id}"
        hidden = P2pdOptions(tmp_path, accepts_inbound=False, relays=(away,), is_hidden=True)
        alice = await _open(stack, thread, tmp_path, ALICE, hidden)
        with pytest.raises(CallTimeout, match="no relay"):
            await alice.call(BOB.peer_id, "echo", b"", timeout_s=10)


def test_there_is_no_circuit_to_the_relay_itself() -> None:
    assert circuits_through((ADDRESS,), RELAY.peer_id) == ()
    assert len(circuits_through((ADDRESS,), BOB.peer_id)) == 1


async def test_a_place_is_taken_again_once_when_a_relay_is_back(autojump_clock: trio.testing.MockClock) -> None:
    began: list[float] = []
    answers = iter([True, True, False, False, True, True])

    async def ping(peer: PeerId) -> None:
        assert peer == RELAY.peer_id
        if not next(answers, True):
            raise CallTimeout("no answer", "one")

    with trio.move_on_after(10 * RELAY_CHECK_S):
        await keep_place((ADDRESS,), ping, lambda: began.append(trio.current_time()))
    assert began == [5 * RELAY_CHECK_S]
