"""How long the network takes to obey a quota that is used up: seconds from the reading to the last byte on the other side.

`python -m tests.benchmarks.cap_obeyed [--times N]`: two p2pd processes on this machine, one bulk stream that is always full, and the
peer's own controls with a day's traffic that the benchmark sets. The promise is 5 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import trio

from averaging.network.libp2p.libp2p_network import NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.directory import signed_record_rule
from averaging.network.seams.interfaces import Stream
from peer.owner.controls import Controls
from peer.owner.controls_core import ControlSettings, Readings
from peer.status.status_board import StatusBoard
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

PROMISED_S: Final = 5.0
FRAME_BYTES: Final = 65_536
CAP_BYTES_PER_S: Final = 50e6
"""Below what this machine can carry, so that the pacer and not the processor sets the pace."""
FLOWS_FOR_S: Final = 3.0
STILL_FOR_S: Final = 8.0
"""Of silence are watched, in which nothing may come any more after the promised time."""
LEAST_FLOW_BYTES: Final = 1 << 20
"""In a second of flowing: far above what a stopped lane lets through."""


class _Day:
    """A machine whose traffic of today the benchmark sets."""

    def __init__(self) -> None:
        self.readings = Readings(0.0, datetime.now(UTC))

    async def read(self) -> Readings:
        return replace(self.readings, now_s=trio.current_time(), local=datetime.now(UTC))


class _Reader:
    """The other side of the stream: how much came, and when the last of it."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.last_s = 0.0

    async def take(self, _sender: PeerId, stream: Stream) -> None:
        while (frame := await stream.receive_frame()) is not None:
            self.num_bytes += len(frame)
            self.last_s = trio.current_time()


async def _send(stream: Stream) -> None:
    frame = bytes(FRAME_BYTES)
    while True:
        await stream.send_frame(frame)


async def _stopped_after_s(day: _Day, reader: _Reader) -> float:
    began_s = trio.current_time()
    day.readings = replace(day.readings, today_bytes=2)
    await trio.sleep(STILL_FOR_S)
    return max(0.0, reader.last_s - began_s)


async def _flowing_after_s(day: _Day, reader: _Reader) -> float:
    began_s, before = trio.current_time(), reader.num_bytes
    day.readings = replace(day.readings, today_bytes=0)
    while reader.num_bytes < before + LEAST_FLOW_BYTES:
        await trio.sleep(0.01)
    return trio.current_time() - began_s


async def measure(folder: Path, times: int) -> tuple[list[float], list[float]]:
    """Seconds to a standstill, and seconds until it flows again, each so many times."""
    run_id, random = RunId(bytes(32)), Random(1)
    identities = Identity(b"a" * 32), Identity(b"b" * 32)
    rule = signed_record_rule(Ed25519Verifier(), run_id)
    options = []
    for identity in identities:
        file = folder / identity.peer_id
        file.write_bytes(identity.libp2p_private_key_bytes())
        file.chmod(0o600)
        options.append(NetworkOptions(P2pdOptions(file, listen=("/ip4/127.0.0.1/tcp/0",)), rule))
    async with (
        open_asyncio_thread() as thread,
        open_libp2p_network(thread, options[0], identities[0].peer_id, unix_s=time.time) as sender,
        open_libp2p_network(thread, options[1], identities[1].peer_id, unix_s=time.time) as receiver,
        trio.open_nursery() as nursery,
    ):
        await sender.add_addresses(receiver.addresses())
        day, reader = _Day(), _Reader()
        receiver.serve_streams("bulk", reader.take)
        settings = ControlSettings(daily_quota_bytes=1, upload_bytes_per_s=CAP_BYTES_PER_S)
        controls = Controls(settings, day, StatusBoard(sender.peer_id, SystemClock(), 0.0))
        controls.cap(sender)
        nursery.start_soon(controls.keep)
        nursery.start_soon(_send, await sender.open_stream(receiver.peer_id, "bulk", timeout_s=10.0))
        stopped, flowing = [], []
        for _ in range(times):
            await trio.sleep(FLOWS_FOR_S + random.random())
            stopped.append(await _stopped_after_s(day, reader))
            flowing.append(await _flowing_after_s(day, reader))
        nursery.cancel_scope.cancel()
    return stopped, flowing


def main(arguments: Sequence[str]) -> None:
    """Prints both, in seconds."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cap_obeyed", description=__doc__)
    parser.add_argument("--times", type=int, default=8)
    times = parser.parse_args(arguments).times
    with tempfile.TemporaryDirectory(prefix="potluck-cap.") as name:
        for what, found in zip(("stands still", "flows again"), trio.run(measure, Path(name), times), strict=True):
            print(
                f"{what} after: median {statistics.median(found):.2f} s, longest {max(found):.2f} s of {len(found)};"
                f" promised {PROMISED_S:.0f} s"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
