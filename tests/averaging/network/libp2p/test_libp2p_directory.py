from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from averaging.network.libp2p.libp2p_directory import Libp2pDirectory
from averaging.network.libp2p.libp2p_session import Session
from averaging.network.pacing.counters import DIRECTORY_CHANNEL, ControlTally
from averaging.network.seams.asyncio_thread import AsyncioThread
from averaging.network.seams.interfaces import ControlCount, DirectoryEntry


class Node:
    """A session and the thread that it runs on. It stores records or refuses them."""

    def __init__(self) -> None:
        self.takes = True
        self.brought: list[tuple[str, str, bytes, float]] = []

    async def run(self, function: Callable[..., Awaitable[Any]], *args: object) -> Any:
        return await function(*args)

    async def publish(self, key: str, subkey: str, value: bytes, expires_unix_s: float) -> bool:
        self.brought.append((key, subkey, value, expires_unix_s))
        return self.takes

    async def lookup(self, key: str) -> tuple[DirectoryEntry, ...]:
        return tuple(DirectoryEntry(subkey, value, until_s) for at, subkey, value, until_s in self.brought if at == key)


def _open(node: Node) -> tuple[Libp2pDirectory, ControlTally]:
    async def current() -> Session:
        return cast(Session, node)

    tally = ControlTally()
    return Libp2pDirectory(cast(AsyncioThread, node), current, tally), tally


async def test_what_is_published_and_found_is_counted() -> None:
    node = Node()
    directory, tally = _open(node)
    assert await directory.publish("key", "peer", bytes(100), expires_unix_s=60.0)
    assert tally.counts() == (ControlCount(DIRECTORY_CHANNEL, 107, 0),)
    assert len(await directory.lookup("key")) == 1
    assert len(await directory.lookup("other")) == 0
    assert tally.counts() == (ControlCount(DIRECTORY_CHANNEL, 115, 104),)


async def test_after_a_restart_live_records_that_were_taken_go_there_again_and_are_counted_again() -> None:
    node = Node()
    directory, tally = _open(node)
    await directory.publish("key", "live", bytes(100), expires_unix_s=60.0)
    await directory.publish("key", "expired", bytes(100), expires_unix_s=10.0)
    node.takes = False
    assert not await directory.publish("key", "refused", bytes(100), expires_unix_s=60.0)
    before, node.takes, node.brought = tally.bytes_up, True, []
    await directory.publish_again(20.0)
    assert node.brought == [("key", "live", bytes(100), 60.0)]
    assert tally.bytes_up - before == 107
