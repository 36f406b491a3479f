"""Server-sent events on trio (https://html.spec.whatwg.org/multipage/server-sent-events.html). Many streams may send the same bytes,
which are made once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from averaging.host.web_files import SAFE_HEADERS

SEND_WITHIN_S: Final = 30.0
"""A reader that takes no event for so long has gone without a word, and gives its place to another."""

STILL_HERE: Final = b": still here\n\n"
"""A comment, which readers ignore. It is sent while nothing changes, since only a write shows that a reader has gone."""

MEDIA_TYPE: Final = "text/event-stream"


def event_of(name: str, text: str) -> bytes:
    """One event. `text` is one line, such as JSON."""
    return f"event: {name}\ndata: {text}\n\n".encode()


class EventStream(Response):
    """A response that goes on until its reader leaves or its events end."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers={**SAFE_HEADERS, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_left, receive, nursery.cancel_scope)
            async with aclosing(self._events) as events:
                async for event in events:
                    with trio.move_on_after(SEND_WITHIN_S) as sending:
                        await send({"type": "http.response.body", "body": event, "more_body": True})
                    if sending.cancelled_caught:
                        break
            nursery.cancel_scope.cancel()


async def _until_left(receive: Receive, stream: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()
