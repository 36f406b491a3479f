"""A donor that harms who fetches from it: it sends other bytes, drips them, or goes silent in mid-stream. Its votes stay honest."""

from __future__ import annotations

from typing import Literal

import trio

from averaging.network.seams.interfaces import Stream, StreamHandler
from protocol.ids import PeerId

Harm = Literal["lies", "drips", "falls silent"]
HARMS: tuple[Harm, ...] = ("lies", "drips", "falls silent")

DRIP_S = 15.0
"""Below every deadline for one frame."""

SILENT_S = 3600.0


class Donor:
    """The present harm to one peer's answers to fetches; none if `harm` is None."""

    def __init__(self) -> None:
        self.harm: Harm | None = None

    def wrap(self, serve: StreamHandler) -> StreamHandler:
        """The same handler, with a harmed stream where there is harm when it is called."""

        async def harmed(peer: PeerId, stream: Stream) -> None:
            await serve(peer, stream if self.harm is None else _Harmed(stream, self.harm))

        return harmed


class _Harmed:
    """A stream whose sent frames suffer."""

    def __init__(self, stream: Stream, harm: Harm) -> None:
        self._stream = stream
        self._harm = harm

    @property
    def remote(self) -> PeerId:
        return self._stream.remote

    def count_as(self, unit: str, codec: str) -> None:
        self._stream.count_as(unit, codec)

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        if self._harm == "drips":
            await trio.sleep(DRIP_S)
        elif self._harm == "falls silent":
            await trio.sleep(SILENT_S)
        elif len(data):
            data = bytes([data[0] ^ 1]) + bytes(data[1:])
        await self._stream.send_frame(data, head)

    async def receive_frame(self) -> bytes | None:
        return await self._stream.receive_frame()

    async def aclose(self) -> None:
        await self._stream.aclose()
