from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from averaging.network.seams.frames import EndOfStream, FrameReader, Status, refusal
from protocol.errors import CallTimeout, PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def _reader(data: bytes, *, is_whole: bool = True) -> tuple[FrameReader, asyncio.StreamReader]:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    if is_whole:
        stream.feed_eof()
    return FrameReader(stream), stream


def test_a_frame_over_the_cap_is_refused_by_its_length_alone() -> None:
    async def check() -> None:
        frames, _ = _reader(b"\xff\xff\xff\xfe", is_whole=False)
        with pytest.raises(RemoteProtocolError, match="4294967294 bytes"):
            await frames.read(100)

    _run(check())


def test_the_end_marker_is_a_clean_end_and_a_bare_end_of_file_is_not() -> None:
    async def check() -> None:
        frames, _ = _reader(b"\x00\x00\x00\x01a\xff\xff\xff\xff")
        assert await frames.read(100) == b"a"
        with pytest.raises(EndOfStream):
            await frames.read(100)
        assert frames.is_ended
        broken, _ = _reader(b"\x00\x00\x00\x05ab")
        with pytest.raises(asyncio.IncompleteReadError):
            await broken.read(100)

    _run(check())


def test_a_read_cancelled_between_length_and_body_goes_on_where_it_stopped() -> None:
    async def check() -> None:
        frames, stream = _reader(b"\x00\x00\x00\x03a", is_whole=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(frames.read(100), 0.01)
        stream.feed_data(b"bc")
        assert await frames.read(100) == b"abc"

    _run(check())


def test_an_unknown_status_is_a_remote_error() -> None:
    async def check() -> None:
        frames, _ = _reader(b"\x09")
        with pytest.raises(RemoteProtocolError, match="status 9"):
            await frames.read_status()

    _run(check())


def test_a_busy_peer_is_slow_and_an_unserved_channel_is_unreachable() -> None:
    peer = PeerId("12D3")
    assert isinstance(refusal(Status.BUSY, peer, "bulk"), CallTimeout)
    assert isinstance(refusal(Status.UNSERVED, peer, "bulk"), PeerUnreachable)
    assert "no such chunk" in str(refusal(Status.FAILED, peer, "bulk", "no such chunk"))
