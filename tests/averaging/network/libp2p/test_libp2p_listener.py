from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

from averaging.network.libp2p.hivemind_parts import import_hivemind
from averaging.network.libp2p.libp2p_listener import OPEN_FILES, allow_open_files, make_listener
from protocol.identity.identity import Identity
from protocol.ids import PeerId

PEER = Identity(bytes(32)).peer_id
NUM_WAITING = 300


def _named(proto: str) -> bytes:
    """The message that p2pd sends before a stream."""
    import_hivemind()
    from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID
    from hivemind.proto import p2pd_pb2
    from hivemind.utils.multiaddr import Multiaddr

    here = Multiaddr("/ip4/127.0.0.1/tcp/1").to_bytes()
    info = p2pd_pb2.StreamInfo(peer=PeerID.from_base58(PEER).to_bytes(), addr=here, proto=proto).SerializeToString()
    return bytes([len(info)]) + info


def _served_of(connections: list[bytes], path: Path) -> list[PeerId]:
    """The peers that were served, of connections that all came before the loop ran again; we ended each of them."""
    served: list[PeerId] = []

    async def serve(peer: PeerId, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(peer)
        writer.close()

    async def play() -> None:
        server = await make_listener(path, {"potluck": serve})
        await server.start_serving()
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in connections]
            for client, said in zip(clients, connections, strict=True):
                client.setblocking(False)
                client.connect(str(path))
                client.send(said)
                client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(20.0):
                for client in clients:
                    assert await loop.sock_recv(client, 1) == b""
        server.close()

    asyncio.run(play())
    return served


def test_streams_that_come_while_we_get_no_processor_time_wait_for_us(tmp_path: Path) -> None:
    """Beyond the usual 100 connections p2pd found no room, and reset each stream: the death of a living process, to its peer."""
    assert _served_of([_named("potluck")] * NUM_WAITING, tmp_path / "s") == [PEER] * NUM_WAITING


def test_what_is_no_stream_of_ours_is_dropped_and_the_others_are_served(tmp_path: Path) -> None:
    no_streams = [_named("other"), b"\x03abc", b"\xff" * 20, b""]
    assert _served_of([*no_streams, _named("potluck")], tmp_path / "s") == [PEER]


def test_open_files_are_allowed_up_to_what_the_owner_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        allow_open_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (soft, hard) == (OPEN_FILES if hard < 0 else min(hard, OPEN_FILES), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
