"""Contributions that leave while they are being encoded: the member's side and the reducer's, without and with faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange.contribution_sender import OFFER, SEND_ON
from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL, RETRY_AFTER_S, Exchange
from averaging.rounds.exchange.streamed_contribution import GrowingContribution
from averaging.rounds.traffic import contribution
from averaging.rounds.traffic.contribution import EncodedContribution
from protocol.errors import PeerUnreachable
from protocol.ids import PeerId
from protocol.rounds.messages.messages import Proposal
from protocol.rounds.messages.requests import NO_PART, NOTHING_TO_OFFER, ExchangeHello
from protocol.rounds.messages.wire import encode_body
from tests.averaging.rounds.exchange_world import (
    END,
    NEED,
    ONE_SLICE,
    TWO_SLICES,
    Side,
    all_frames,
    chunk_frame,
    contribution_of,
    hello_of,
    running,
    signed_header,
    talk,
    three_sides,
    until_over,
)
from tests.averaging.rounds.round_world import CHUNK_BYTES, RoundWorld

Clock = trio.testing.MockClock


def _ahead_hello(proposal: Proposal, number: int = 0) -> ExchangeHello:
    return contribution.hello_before(proposal, proposal.slices[number])


def _said(proposal: Proposal, mine: EncodedContribution, number: int = 0, **changes: object) -> list[bytes]:
    return [OFFER, encode_body(hello_of(proposal, mine, number, **changes))]


def _frames(mine: EncodedContribution, chunks: Sequence[int]) -> list[bytes]:
    return [chunk_frame(chunk, bytes(mine.chunks[chunk])) for chunk in chunks]


def _growing(mine: EncodedContribution) -> GrowingContribution:
    return GrowingContribution(mine.data, [memoryview(chunk) for chunk in mine.chunks])


@dataclass
class Member:
    """One of three whose contribution is being encoded; the other two have theirs, and the first of them reduces."""

    mine: EncodedContribution
    growing: GrowingContribution
    exchange: Exchange


@asynccontextmanager
async def _encoding(sides: Sequence[Side], proposal: Proposal, within_s: float = 20.0) -> AsyncIterator[Member]:
    """The third side; at the end of the block until every slice has its result at all of them."""
    mine = sides[2].contribution
    assert mine is not None
    async with running(sides[:2], proposal, within_s), trio.open_nursery() as nursery:
        member = Member(mine, _growing(mine), sides[2].begin(proposal, has_offer=False))
        nursery.start_soon(member.exchange.run)
        member.exchange.grow(member.growing)
        yield member
        await until_over([member.exchange])
        nursery.cancel_scope.cancel()


# --- the member's side --------------------------------------------------------------------------------------------------------


async def test_chunks_leave_as_they_are_encoded_and_the_header_follows_them(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        async with _encoding(sides, world.proposal(ONE_SLICE, reduce_within_s=60.0)) as member:
            await trio.sleep(1.0)
            bulk_bytes = world.parties[2].network.traffic().bulk_bytes_up
            for chunk in range(4):
                member.growing.grew([range(chunk, chunk + 1)])
                await trio.sleep(1.0)
            carried = world.parties[2].network.traffic().bulk_bytes_up - bulk_bytes
            assert 0 < carried <= 4 * (5 + CHUNK_BYTES)
            assert sides[0].offers.get(world.parties[2].peer) is None, "without a header nothing counts"
            member.growing.grew([range(4, 6)])
            await trio.sleep(1.0)
            assert sides[0].kept == {}
            member.exchange.offer(member.mine)
        assert sides[0].omitted() == []
        assert sides[2].kept[0][1] == sides[0].kept[0][1]
        carried = world.parties[2].network.traffic().bulk_bytes_up - bulk_bytes
        assert carried < 6 * (5 + CHUNK_BYTES) + 1000, "no chunk twice"


async def test_results_are_those_of_contributions_that_were_whole_at_first(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        async with running(sides, world.proposal(TWO_SLICES)):
            pass
        expected = {first: data for first, (_, data) in sides[0].kept.items()}
    async with three_sides() as (world, sides), trio.open_nursery() as nursery:
        exchanges = [side.begin(world.proposal(TWO_SLICES), has_offer=False) for side in sides]
        for exchange, side in zip(exchanges, sides, strict=True):
            nursery.start_soon(exchange.run)
            nursery.start_soon(_encode_slowly, exchange, side)
        await until_over(exchanges)
        nursery.cancel_scope.cancel()
        for side in sides:
            assert {first: data for first, (_, data) in side.kept.items()} == expected


async def _encode_slowly(exchange: Exchange, side: Side) -> None:
    assert side.contribution is not None
    growing = _growing(side.contribution)
    exchange.grow(growing)
    for chunk in (4, 0, 5, 1, 2, 3):
        await trio.sleep(0.3)
        growing.grew([range(chunk, chunk + 1)])
    exchange.offer(side.contribution)


@pytest.mark.parametrize(("no_part", "reason"), [(False, NOTHING_TO_OFFER), (True, NO_PART)])
async def test_a_contribution_that_comes_to_nothing_is_withdrawn_and_its_member_gets_the_result(
    no_part: bool, reason: str, autojump_clock: Clock
) -> None:
    async with three_sides() as (world, sides):
        async with _encoding(sides, world.proposal(ONE_SLICE, reduce_within_s=60.0), within_s=10.0) as member:
            member.growing.grew([range(2)])
            await trio.sleep(1.0)
            member.growing.give_up()
            await trio.sleep(1.0)
            member.exchange.offer(None, no_part=no_part)
            await until_over([member.exchange])
            reported_s = member.exchange.upload_s(trio.current_time())
        assert sides[0].omitted() == [(world.parties[2].peer, reason)]
        assert sides[2].kept[0][1] == sides[0].kept[0][1]
        assert reported_s is None, "what left of it says nothing of a whole upload"


async def test_a_reducer_of_an_older_release_waits_for_the_whole_contribution(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows nothing of headers that follow. Taken for a member with nothing to offer this one would be left out."""
    monkeypatch.setattr(ExchangeHello, "follows", False)
    async with three_sides() as (world, sides):
        async with _encoding(sides, world.proposal(ONE_SLICE, reduce_within_s=60.0)) as member:
            await trio.sleep(2.0)
            member.growing.grew([range(6)])
            member.exchange.offer(member.mine)
        assert sides[0].omitted() == []


async def test_nothing_leaves_after_a_withdrawal_though_all_is_encoded(autojump_clock: Clock) -> None:
    """As where the disk refuses the root: the reducer would take chunks for those of another."""
    async with three_sides() as (world, sides):
        proposal, mine, frames = world.proposal(ONE_SLICE), sides[2].contribution, list[bytes]()
        assert mine is not None

        async def reduce(sender: PeerId, stream: Stream) -> None:
            await stream.receive_frame()
            await stream.send_frame(SEND_ON)
            while (frame := await stream.receive_frame()) is not None:
                frames.append(frame[:1])

        world.parties[0].network.serve_streams(EXCHANGE_CHANNEL, reduce)
        async with trio.open_nursery() as nursery:
            exchange, growing = sides[2].begin(proposal, has_offer=False), _growing(mine)
            nursery.start_soon(exchange.run)
            exchange.grow(growing)
            await trio.sleep(1.0)
            growing.grew([range(6)])
            exchange.offer(None)
            await trio.sleep(5.0)
            nursery.cancel_scope.cancel()
        said = frames.index(OFFER)
        assert frames[said + 2 :] == [END]


async def test_a_stream_that_breaks_before_the_header_costs_nothing_of_the_contribution(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        async with _encoding(sides, world.proposal(ONE_SLICE, reduce_within_s=60.0)) as member:
            member.growing.grew([range(5)])
            await trio.sleep(1.0)
            world.swarm.cut([world.parties[2].peer], [world.parties[0].peer])
            await trio.sleep(1.0)
            world.swarm.heal()
            await trio.sleep(2 * RETRY_AFTER_S)
            member.growing.grew([range(5, 6)])
            member.exchange.offer(member.mine)
        assert sides[0].omitted() == []


# --- the reducer's side -------------------------------------------------------------------------------------------------------


async def test_chunks_that_come_before_and_after_their_header_are_all_counted(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine, proposal = contribution_of(world.parties[2], 2), world.proposal(ONE_SLICE)
        frames = [*_frames(mine, (3, 0)), *_said(proposal, mine), *_frames(mine, (1, 2, 4, 5)), END, NEED]
        async with running(sides[:2], proposal):
            answers = await talk(world.parties[2], world.parties[0], _ahead_hello(proposal), frames)
        assert answers[0] == SEND_ON
        assert sides[0].omitted() == []
        assert b"".join(answers[2:]) == sides[0].kept[0][1]


Wrong = Callable[[RoundWorld, Proposal, EncodedContribution], list[bytes]]


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        pytest.param(lambda w, p, mine: [*_frames(mine, (0, 0)), *_said(p, mine)], "chunk 0 twice", id="a chunk twice"),
        pytest.param(
            lambda w, p, mine: [chunk_frame(0, bytes(mine.chunks[1])), *_said(p, mine), END],
            "chunk 0 with another hash",
            id="another chunk than was signed",
        ),
        pytest.param(
            lambda w, p, mine: [chunk_frame(6, bytes(mine.chunks[0]))], "frame b'C' for chunk 6", id="a chunk too many"
        ),
        pytest.param(lambda w, p, mine: [chunk_frame(0, b"x")], "chunk 0 of 1 bytes", id="a short chunk"),
        pytest.param(lambda w, p, mine: [b"X"], "a frame of 1 bytes; expected a chunk", id="no chunk"),
        pytest.param(
            lambda w, p, mine: [*_frames(mine, (0,)), END], "chunks without the header", id="no header at all"
        ),
        pytest.param(
            lambda w, p, mine: [OFFER, encode_body(_ahead_hello(p))], "a header for another slice", id="no header again"
        ),
        pytest.param(
            lambda w, p, mine: _said(p, mine, first_chunk=1), "a header for another slice", id="of another slice"
        ),
        pytest.param(lambda w, p, mine: [OFFER, b"\xff"], "", id="bytes that are no hello"),
        pytest.param(
            lambda w, p, mine: [
                *_frames(mine, (0,)),
                *_said(p, replace(mine, header=signed_header(w.stranger, mine, member=w.parties[2].member))),
            ],
            "a contribution of",
            id="signed by another",
        ),
        pytest.param(
            lambda w, p, mine: [*_said(p, mine), *_said(p, mine)], "two headers of a contribution", id="two headers"
        ),
    ],
)
async def test_what_does_not_fit_before_a_header_resets_the_stream_and_its_sender_is_named(
    frames: Wrong, why: str, autojump_clock: Clock
) -> None:
    async with three_sides() as (world, sides):
        mine, proposal = contribution_of(world.parties[2], 2), world.proposal(ONE_SLICE, reduce_within_s=5.0)
        async with running(sides[:2], proposal):
            with pytest.raises(PeerUnreachable):
                await talk(world.parties[2], world.parties[0], _ahead_hello(proposal), frames(world, proposal, mine))
        ((peer, reason),) = sides[0].omitted()
        assert peer == world.parties[2].peer
        assert why in reason


async def test_a_header_of_nobody_withdraws_the_chunks_before_it(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine, proposal = contribution_of(world.parties[2], 2), world.proposal(ONE_SLICE)
        nothing = encode_body(contribution.hello_of(proposal, proposal.slices[0], None))
        frames = [*_frames(mine, range(6)), OFFER, nothing, END, NEED]
        async with running(sides[:2], proposal):
            answers = await talk(world.parties[2], world.parties[0], _ahead_hello(proposal), frames)
        assert sides[0].omitted() == [(world.parties[2].peer, NOTHING_TO_OFFER)]
        assert b"".join(answers[2:]) == sides[0].kept[0][1]


async def test_a_members_second_stream_ends_the_one_that_had_no_header_yet(autojump_clock: Clock) -> None:
    """Else who opens many would fill our memory with chunks that nobody signed."""
    async with three_sides() as (world, sides):
        mine, proposal = contribution_of(world.parties[2], 2), world.proposal(ONE_SLICE, reduce_within_s=60.0)
        async with running(sides[:2], proposal):
            first = await world.parties[2].network.open_stream(world.parties[0].peer, EXCHANGE_CHANNEL, timeout_s=1.0)
            await first.send_frame(encode_body(_ahead_hello(proposal)))
            assert await first.receive_frame() == SEND_ON
            await first.send_frame(_frames(mine, (0,))[0])
            frames = [*_frames(mine, range(6)), *_said(proposal, mine), END, NEED]
            await talk(world.parties[2], world.parties[0], _ahead_hello(proposal), frames)
            with pytest.raises(PeerUnreachable):
                await first.receive_frame()
        assert sides[0].omitted() == []


async def test_a_member_whose_connection_broke_is_late_and_not_refused(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        proposal = world.proposal(ONE_SLICE, reduce_within_s=5.0)
        async with running(sides[:2], proposal):
            for _ in range(2):  # the second one comes before the reducer notices that the first has broken
                stream = await world.parties[2].network.open_stream(
                    world.parties[0].peer, EXCHANGE_CHANNEL, timeout_s=1.0
                )
                await stream.send_frame(encode_body(_ahead_hello(proposal)))
                assert await stream.receive_frame() == SEND_ON
        assert sides[0].omitted() == [(world.parties[2].peer, "late")]


async def test_a_stream_with_the_header_in_front_ends_the_one_that_had_none_yet(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine, proposal = contribution_of(world.parties[2], 2), world.proposal(ONE_SLICE, reduce_within_s=60.0)
        async with running(sides[:2], proposal):
            first = await world.parties[2].network.open_stream(world.parties[0].peer, EXCHANGE_CHANNEL, timeout_s=1.0)
            await first.send_frame(encode_body(_ahead_hello(proposal)))
            assert await first.receive_frame() == SEND_ON
            await first.send_frame(_frames(mine, (0,))[0])
            await talk(world.parties[2], world.parties[0], hello_of(proposal, mine), all_frames(mine))
            with pytest.raises(PeerUnreachable):
                await first.receive_frame()
