"""Calls to one peer about a lane: in order, repeated until answered, and a heartbeat when there is nothing to send."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from peer.pipeline.transport.lane_calls import BEAT_S, CALL_WITHIN_S, MEMBER_CHANNEL, CallLine, call_again, read_answer
from protocol.errors import CallTimeout, ConnectionReset, PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.messages.lane_messages import (
    LaneAnswer,
    LaneFetch,
    LaneLoaded,
    LaneMessage,
    LanePing,
    LaneResume,
)
from protocol.pipeline.messages.lane_wire import decode_lane_message, encode_lane_message, encode_parcel
from protocol.pipeline.stage_machine import Point

HERE, THERE = PeerId("here"), PeerId("there")


@dataclass
class Line:
    """A line to a peer that notes what it hears."""

    swarm: MemorySwarm
    nursery: trio.Nursery
    heard: list[LaneMessage] = field(default_factory=list)
    answered: list[tuple[LaneMessage, str]] = field(default_factory=list)
    reply: bytes = encode_parcel(LaneAnswer(""))
    error: PotluckError | None = None

    def __post_init__(self) -> None:
        self.swarm.start(THERE).serve_calls(MEMBER_CHANNEL, self._serve)
        self.line = CallLine(
            self.swarm.start(HERE),
            THERE,
            MEMBER_CHANNEL,
            lambda *said: self.answered.append(said),
            lambda: LanePing(0, 0),
        )
        self.nursery.start_soon(self._run)

    async def _serve(self, sender: PeerId, request: bytes) -> bytes:
        self.heard.append(decode_lane_message(request))
        return self.reply

    async def _run(self) -> None:
        try:
            await self.line.run()
        except PotluckError as error:
            self.error = error


@asynccontextmanager
async def _line() -> AsyncIterator[Line]:
    async with trio.open_nursery() as nursery:
        yield Line(MemorySwarm(nursery, random.Random(1)), nursery)
        nursery.cancel_scope.cancel()


async def test_messages_are_heard_in_their_order_and_signs_of_life_between_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    said = [LaneResume(0, 1), LaneLoaded(0, 1)]
    async with _line() as line:
        for message in said:
            line.line.put(message)
        await trio.sleep(0.3)
        assert line.heard == said
        assert line.answered == [(message, "") for message in said]
        await trio.sleep(3 * BEAT_S)
        assert line.heard[2:]
        assert set(line.heard[2:]) == {LanePing(0, 0)}


async def test_what_is_lost_is_said_again_and_what_is_out_of_date_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _line() as line:
        line.swarm.losses = {THERE: 1.0}
        for message in (LaneResume(0, 1), LaneResume(0, 2)):
            line.line.put(message)
        await trio.sleep(2.0)
        line.line.put_instead(LaneResume(0, 3))
        line.swarm.losses = {}
        await trio.sleep(1.0)
        assert [message for message in line.heard if isinstance(message, LaneResume)] == [LaneResume(0, 3)]


async def test_a_sign_of_life_that_is_lost_is_said_again_as_soon_as_that_is_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _line() as line:
        await trio.sleep(2 * BEAT_S)
        line.swarm.losses = {THERE: 1.0}
        await trio.sleep(BEAT_S + CALL_WITHIN_S + 0.05)
        line.swarm.losses = {}
        heard = len(line.heard)
        await trio.sleep(CALL_WITHIN_S)
        assert len(line.heard) > heard


async def test_a_way_that_is_given_up_at_once_is_tried_again_after_a_pause(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[float]()

    async def fails(*_: object, **__: object) -> bytes:
        calls.append(trio.current_time())
        raise CallTimeout("our own libp2p daemon is not there", "a running one")

    async with _line() as line:
        monkeypatch.setattr(MemoryNetwork, "call", fails)
        line.line.put(LaneResume(0, 1))
        await trio.sleep(1.0)
        assert 5 < len(calls) < 15


async def test_a_refusal_is_told_and_a_process_that_is_gone_ends_the_line(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _line() as line:
        line.reply = encode_parcel(LaneAnswer("no such lane"))
        line.line.put(LaneResume(0, 1))
        await trio.sleep(0.2)
        assert line.answered == [(LaneResume(0, 1), "no such lane")]
        line.swarm.kill(THERE)
        await trio.sleep(1.0)
        assert isinstance(line.error, PeerUnreachable)


async def test_a_connection_that_breaks_is_no_death_and_what_was_said_is_heard_once_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _line() as line:
        line.swarm.broken = 0.5
        said = [LaneResume(0, number) for number in range(20)]
        for message in said:
            line.line.put(message)
        await trio.sleep(20.0)
        assert line.error is None
        assert [message for message, _ in line.answered if isinstance(message, LaneResume)] == said
        line.swarm.kill(THERE)
        await trio.sleep(1.0)
        assert isinstance(line.error, PeerUnreachable)


async def test_a_single_call_whose_connection_breaks_is_made_once_more(autojump_clock: trio.testing.MockClock) -> None:
    async with _line() as line:
        line.swarm.broken = 1.0
        network = line.swarm.start(PeerId("third"))

        async def ask() -> bytes:
            return await call_again(network, THERE, MEMBER_CHANNEL, encode_lane_message(LanePing(0, 0)), timeout_s=1.0)

        with pytest.raises(ConnectionReset):
            await ask()
        broken = iter([True])
        line.swarm.is_broken = lambda: next(broken, False)  # type: ignore[method-assign]
        assert read_answer(await ask()) == ""


def test_anything_but_an_answer_is_none() -> None:
    with pytest.raises(RemoteProtocolError, match="for an answer"):
        read_answer(encode_parcel(LaneFetch(0, 0, Point(0, 0), 0)))
    with pytest.raises(RemoteProtocolError):
        read_answer(b"")
