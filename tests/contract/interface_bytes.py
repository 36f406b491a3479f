"""`python -m tests.contract.interface_bytes FOLDER`: three peers speak, and what they counted is told beside what went over the
loopback interface of a network namespace that nobody else is in. If this machine gives us none, it is everybody's interface.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final

_CLONE_NEWUSER: Final = 0x1000_0000  # linux/sched.h
_CLONE_NEWNET: Final = 0x4000_0000
_SIOCSIFFLAGS: Final = 0x8914  # linux/sockios.h
_IFF_UP_RUNNING: Final = 0x41
FRAME_BYTES: Final = 1 << 20
NUM_UP: Final = 12
NUM_DOWN: Final = 4
NUM_CALLS: Final = 20
CALL_BYTES: Final = 50_000


def moved_to_own_namespace() -> bool:
    """Leave for a network of our own, with a loopback interface that is up. Before any thread is begun."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    if libc.unshare(flags) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))
    return True


def interface_bytes() -> int:
    """All that was sent over the loopback interface so far, heads and all."""
    for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    raise LookupError("no loopback interface")


async def spoken(folder: Path) -> dict[str, object]:
    """Bulk both ways on direct streams and over libp2p, and calls; the bytes that all counted as sent, and those on the interface."""
    from contextlib import AsyncExitStack
    from dataclasses import replace

    import trio

    from averaging.network.seams.asyncio_thread import open_asyncio_thread
    from averaging.network.seams.interfaces import Stream
    from protocol.ids import PeerId
    from tests.averaging.network.direct_world import RUN, options_of
    from tests.averaging.network.libp2p.test_libp2p_network import ALICE, BOB, CAROL, _echo, _open, _options

    async def swap(_peer: PeerId, stream: Stream) -> None:
        for _ in range(NUM_UP):
            await stream.receive_frame()
        for _ in range(NUM_DOWN):
            await stream.send_frame(bytes(FRAME_BYTES))
        await stream.receive_frame()

    async with AsyncExitStack() as stack:
        thread = await stack.enter_async_context(open_asyncio_thread())
        alice, bob = [
            await stack.enter_async_context(
                _open(thread, replace(_options(folder, who), direct=options_of(who, RUN)), who)
            )
            for who in (ALICE, BOB)
        ]
        carol = await stack.enter_async_context(_open(thread, _options(folder, CAROL), CAROL))
        everybody = (alice, bob, carol)
        alice.serve_streams("swap", swap)
        alice.serve_calls("echo", _echo)
        for other in (bob, carol):
            await other.add_addresses(alice.addresses())
            await other.call(alice.peer_id, "echo", b"here", timeout_s=60)
        before = interface_bytes(), sum(network.traffic().bytes_up for network in everybody)
        for other in (bob, carol):
            stream = await other.open_stream(alice.peer_id, "swap", timeout_s=60)
            for _ in range(NUM_UP):
                await stream.send_frame(bytes(FRAME_BYTES))
            with trio.fail_after(120):
                for _ in range(NUM_DOWN):
                    await stream.receive_frame()
            await stream.aclose()
            for _ in range(NUM_CALLS):
                await other.call(alice.peer_id, "echo", bytes(CALL_BYTES), timeout_s=60)
        reported = [network.traffic() for network in everybody]
        return {
            "interface": interface_bytes() - before[0],
            "counted": sum(each.bytes_up for each in reported) - before[1],
            "kinds": sorted({count.kind.way.value for each in reported for count in each.bulk}),
        }


def main() -> None:
    """Prints what was found, as JSON."""
    is_alone = moved_to_own_namespace()

    import trio

    print(json.dumps({**trio.run(spoken, Path(sys.argv[1])), "is_alone": is_alone}))


if __name__ == "__main__":
    main()
