from __future__ import annotations

from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import trio
import trio.testing

from coordinator.status.event_stream import SEND_WITHIN_S, EventStream, event_of

Clock = trio.testing.MockClock
Message = MutableMapping[str, Any]


class Reader:
    """Takes events until it stops reading, or leaves; notes whether the events were closed."""

    def __init__(self, *, takes: int, leaves: bool) -> None:
        self._takes, self._leaves = takes, leaves
        self._has_left = trio.Event()
        self.got: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.is_closed = False

    async def events(self) -> AsyncGenerator[bytes]:
        try:
            while True:
                yield event_of("now", '{"tokens": 1}')
                await trio.sleep(1.0)
        finally:
            self.is_closed = True

    async def receive(self) -> Message:
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if len(self.got) == self._takes:
            if self._leaves:
                self._has_left.set()
            await trio.sleep_forever()
        self.got.append(message["body"])

    async def read(self) -> None:
        await EventStream(self.events())({"type": "http"}, self.receive, self.send)


async def test_events_go_on_until_the_reader_leaves(autojump_clock: Clock) -> None:
    reader = Reader(takes=3, leaves=True)
    await reader.read()
    assert reader.got == [b'event: now\ndata: {"tokens": 1}\n\n'] * 3
    assert reader.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in reader.headers
    assert "default-src 'self'" in reader.headers["content-security-policy"]
    assert reader.is_closed


async def test_a_reader_that_takes_nothing_any_more_gives_its_place_back(autojump_clock: Clock) -> None:
    reader, begun_s = Reader(takes=1, leaves=False), trio.current_time()
    await reader.read()
    assert reader.is_closed
    assert trio.current_time() - begun_s <= SEND_WITHIN_S + 2.0
