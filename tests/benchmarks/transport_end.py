"""One end of a one-way transfer, as a process of its own: `python -m tests.benchmarks.transport_end take|give WAY FOLDER [TAKER]`.

`take` prints {"peer", "addresses", "port"} and takes until its input ends. `give` gets that line as TAKER; for each line of its input,
a number of bytes, it sends so many in frames of 1 MiB, waits until the taker has them all, and prints {"seconds"}. WAY is "direct",
"one", which is direct over one connection whatever would pay, "libp2p", "blocking": a blocking socket with ssl, or "grpc": frames as
messages of a client's stream over mutual TLS, without protobuf (grpc.aio, a server's stream and messages of 256 kB were no faster).
In these two there is nothing of ours.
The environment's POTLUCK_TRANSPORT_HOST is the address to listen on where it is not that of loopback.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import repeat
from pathlib import Path
from typing import Final

import grpc
import structlog
import trio

from averaging.network.direct.direct import DirectOptions
from averaging.network.direct.tls_identity import TlsCredential, credential_check, tls_context
from averaging.network.libp2p.libp2p_network import NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.directory import signed_record_rule
from averaging.network.seams.interfaces import Network, Stream, Way
from protocol.identity.credential import make_ca
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

FRAME_BYTES: Final = 1 << 20
GRPC_SERVICE: Final = "bulk"
RUN: Final = RunId(b"t" * 32)
ROLES: Final = {"take": Identity(b"t" * 32), "give": Identity(b"g" * 32)}
CA_FILE: Final = "ca.der"
LIMIT_S: Final = 120.0
HOST_VARIABLE: Final = "POTLUCK_TRANSPORT_HOST"
NUM_SUBSTREAMS: Final = {"direct": 1, "one": 0}
"""That a direct stream begins with; with none it never has more than one connection."""


def write_credentials(folder: Path) -> None:
    """The material that both ends need: a CA, and a credential with its key for each."""
    now_s = time.time()
    authority = make_ca(b"c" * 32, now_unix_s=now_s)
    (folder / CA_FILE).write_bytes(authority.certificate_der)
    for role, identity in ROLES.items():
        certificate, key = authority.issue_own(identity.peer_id, RUN, now_unix_s=now_s, days=1)
        (folder / f"{role}.der").write_bytes(certificate)
        (folder / f"{role}.pem").write_bytes(key)


def _own(folder: Path, role: str) -> TlsCredential:
    return TlsCredential((folder / f"{role}.der").read_bytes(), (folder / f"{role}.pem").read_bytes())


@asynccontextmanager
async def _network(folder: Path, role: str, way: str) -> AsyncIterator[Network]:
    identity, ca, host = ROLES[role], (folder / CA_FILE).read_bytes(), _host()
    file = folder / f"{role}-{way}.identity"
    file.write_bytes(identity.libp2p_private_key_bytes())
    file.chmod(0o600)
    own = _own(folder, role)
    check = credential_check(ca, RUN, time.time)
    direct = DirectOptions(lambda: own, ca, check, host, num_first_substreams=NUM_SUBSTREAMS.get(way, 0))
    options = NetworkOptions(
        P2pdOptions(file, listen=(f"/ip4/{host}/tcp/0",)),
        signed_record_rule(Ed25519Verifier(), RUN),
        direct=direct if way in NUM_SUBSTREAMS else None,
    )
    async with (
        open_asyncio_thread() as thread,
        open_libp2p_network(thread, options, identity.peer_id, unix_s=time.time) as network,
    ):
        yield network


def _host() -> str:
    return os.environ.get(HOST_VARIABLE, "127.0.0.1")


async def _take(folder: Path, way: str) -> None:
    async def serve(_peer: PeerId, stream: Stream) -> None:
        while (frame := await stream.receive_view()) is not None:
            if not frame:
                await stream.send_frame(b"all of it")

    async with _network(folder, "take", way) as network:
        network.serve_streams("bulk", serve)
        print(json.dumps({"peer": network.peer_id, "addresses": network.addresses(), "port": 0}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def _give(folder: Path, way: str, taker: str) -> None:
    reported = json.loads(taker)
    async with _network(folder, "give", way) as network:
        await network.add_addresses(reported["addresses"])
        stream = await network.open_stream(PeerId(reported["peer"]), "bulk", timeout_s=10.0)
        frame = bytes(range(256)) * (FRAME_BYTES // 256)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            began_s = time.monotonic()
            with trio.fail_after(LIMIT_S):
                for _ in range(int(line) // FRAME_BYTES):
                    await stream.send_frame(memoryview(frame))
                await stream.send_frame(b"")
                await stream.receive_frame()
            print(json.dumps({"seconds": time.monotonic() - began_s}), flush=True)
        if {count.kind.way for count in network.traffic().bulk} != {
            Way.DIRECT if way in NUM_SUBSTREAMS else Way.LIBP2P
        }:
            raise SystemExit(f"bulk went another way than {way}")


def _take_blocking(folder: Path) -> None:
    context = tls_context(_own(folder, "take"), (folder / CA_FILE).read_bytes(), is_server=True)
    with socket.create_server((_host(), 0)) as listener:
        print(json.dumps({"peer": "", "addresses": [_host()], "port": listener.getsockname()[1]}), flush=True)
        plain, _ = listener.accept()
    with context.wrap_socket(plain, server_side=True) as connection:
        buffer = memoryview(bytearray(FRAME_BYTES))
        while connection.recv_into(buffer[:8]):
            for _ in range(int.from_bytes(buffer[:8], "big")):
                received = 0
                while received < FRAME_BYTES:
                    received += connection.recv_into(buffer[received:])
            connection.sendall(b"k")


def _give_blocking(folder: Path, taker: str) -> None:
    context = tls_context(_own(folder, "give"), (folder / CA_FILE).read_bytes(), is_server=False)
    frame = bytes(range(256)) * (FRAME_BYTES // 256)
    reported = json.loads(taker)
    plain = socket.create_connection((reported["addresses"][0], reported["port"]))
    with context.wrap_socket(plain) as connection:
        while line := sys.stdin.readline():
            began_s, num_frames = time.monotonic(), int(line) // FRAME_BYTES
            connection.sendall(num_frames.to_bytes(8, "big"))
            for _ in range(num_frames):
                connection.sendall(frame)
            connection.recv(1)
            print(json.dumps({"seconds": time.monotonic() - began_s}), flush=True)


def _pem(certificate_der: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(certificate_der).encode()


def _take_grpc(folder: Path) -> None:
    def take(messages: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
        return str(sum(map(len, messages))).encode()

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {"take": grpc.stream_unary_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_SERVICE, handlers),))
    own, ca = _own(folder, "take"), _pem((folder / CA_FILE).read_bytes())
    pair = own.key_pem, _pem(own.certificate_der)
    port = server.add_secure_port(f"{_host()}:0", grpc.ssl_server_credentials([pair], ca, require_client_auth=True))
    server.start()
    print(json.dumps({"peer": "", "addresses": [_host()], "port": port}), flush=True)
    sys.stdin.read()
    server.stop(None)


def _give_grpc(folder: Path, taker: str) -> None:
    reported, own, ca = json.loads(taker), _own(folder, "give"), _pem((folder / CA_FILE).read_bytes())
    credentials = grpc.ssl_channel_credentials(ca, own.key_pem, _pem(own.certificate_der))
    name = f"{ROLES['take'].peer_id.lower()}.peer.potluck"
    options = (("grpc.ssl_target_name_override", name),)
    frame = bytes(range(256)) * (FRAME_BYTES // 256)
    with grpc.secure_channel(f"{reported['addresses'][0]}:{reported['port']}", credentials, options) as channel:
        take = channel.stream_unary(f"/{GRPC_SERVICE}/take", None, None)
        while line := sys.stdin.readline():
            began_s, num_bytes = time.monotonic(), int(line)
            taken = int(take(repeat(frame, num_bytes // FRAME_BYTES), timeout=LIMIT_S))
            print(json.dumps({"seconds": time.monotonic() - began_s}), flush=True)
            if taken != num_bytes:
                raise SystemExit(f"{taken} of {num_bytes} bytes came")


def main() -> None:
    """As the command line says."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    role, way, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if way == "blocking":
        _take_blocking(folder) if role == "take" else _give_blocking(folder, sys.argv[4])
    elif way == "grpc":
        _take_grpc(folder) if role == "take" else _give_grpc(folder, sys.argv[4])
    elif role == "take":
        trio.run(_take, folder, way)
    else:
        trio.run(_give, folder, way, sys.argv[4])


if __name__ == "__main__":
    main()
