"""A peer's calls to itself, beside its calls to others."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import MemorySwarm
from peer.pipeline.transport.lane_network import OwnLoop
from protocol.errors import CallTimeout, RemoteProtocolError
from protocol.ids import PeerId


async def _echo(sender: PeerId, request: bytes) -> bytes:
    return sender.encode() + request


async def _never(sender: PeerId, request: bytes) -> bytes:
    await trio.sleep_forever()
    return b""


async def test_calls_to_ourselves_and_to_others_come_to_the_same_handlers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        loops = [OwnLoop(swarm.start(PeerId(name))) for name in "ab"]
        for loop in loops:
            loop.serve_calls("echo", _echo)
            loop.serve_calls("never", _never)
        assert await loops[0].call(PeerId("a"), "echo", b"1", timeout_s=1.0) == b"a1"
        assert await loops[0].call(PeerId("b"), "echo", b"1", timeout_s=1.0) == b"a1"
        with pytest.raises(CallTimeout):
            await loops[0].call(PeerId("a"), "never", b"", timeout_s=1.0)
        with pytest.raises(RemoteProtocolError):
            await loops[0].call(PeerId("a"), "nothing", b"", timeout_s=1.0)
        nursery.cancel_scope.cancel()
