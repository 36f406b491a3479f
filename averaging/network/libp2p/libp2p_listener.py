"""The listener for streams that others open to us: p2pd makes one connection to our socket for each. Runs on the asyncio thread.

hivemind's own listener keeps only 100 connections waiting, and p2pd resets every further stream, which looks like the death of our
process. A machine that trains on all its cores may leave us without processor time for seconds, while each member of a large round
sends several messages a second.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from averaging.network.libp2p.libp2p_stream import BROKEN
from protocol.errors import MachineError
from protocol.ids import PeerId

log = structlog.get_logger()

WAITING: Final = 1024
"""Connections that wait for us: 32 members with four messages a second, for eight seconds. The kernel's bound is
net.core.somaxconn, 4096 by default. All are accepted at once later, and each is an open file (`allow_open_files`).
"""

OPEN_FILES: Final = 16384

NAMED_WITHIN_S: Final = 5.0
"""Time limit for p2pd to name the peer of a stream, which it does at once."""

ServeStream = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def allow_open_files() -> None:
    """Raise the limit of open files of this process and its children to what its owner allows, at most OPEN_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def make_listener(socket: Path, handlers: Mapping[str, ServeStream]) -> asyncio.Server:
    """A server for the streams of these protocols on this socket; call `start_serving`, and close it at the end.

    Raises:
        OSError: the socket cannot be made.
    """
    from google.protobuf.message import DecodeError
    from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe
    from hivemind.proto import p2pd_pb2

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = p2pd_pb2.StreamInfo()
        try:
            async with asyncio.timeout(NAMED_WITHIN_S):
                await read_pbmsg_safe(reader, info)
            handler, peer = handlers[info.proto], PeerId(PeerID(info.peer).to_base58())
        except (TimeoutError, DecodeError, ValueError, KeyError, *BROKEN) as error:
            log.debug("stream_not_named", error=repr(error)[:200])
            writer.close()
            return
        except BaseException:
            writer.close()
            raise
        await handler(peer, reader, writer)

    return await asyncio.start_unix_server(serve, path=socket, backlog=WAITING, start_serving=False)


async def bring_to(socket: Path, control_socket: Path, protocols: tuple[str, ...]) -> None:
    """Have p2pd bring the streams of these protocols to this socket, on which we listen already.

    Raises:
        MachineError: p2pd refused.
        asyncio.IncompleteReadError, OSError: p2pd is gone.
    """
    from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
    from hivemind.proto import p2pd_pb2
    from hivemind.utils.multiaddr import Multiaddr

    here = Multiaddr(f"/unix{socket}").to_bytes()
    handler = p2pd_pb2.StreamHandlerRequest(addr=here, proto=list(protocols), balanced=False)
    reader, writer = await asyncio.open_unix_connection(control_socket)
    try:
        await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=handler))
        response = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, response)
    finally:
        writer.close()
    if response.type == p2pd_pb2.Response.ERROR:
        raise MachineError(
            f"p2pd brings us no streams: {response.error.msg[:200]}",
            "a libp2p daemon that does",
            "install hivemind again",
        )
