from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import cast

import pytest
import torch
import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, Stream
from averaging.rounds.exchange.exchange import (
    EXCHANGE_CHANNEL,
    KEEP_OWN_AFTER_S,
    KEEP_OWN_SHARE,
    OPEN_EARLY_S,
    Exchange,
)
from averaging.rounds.traffic.contribution import EncodedContribution
from averaging.rounds.traffic.result_ref import need_from, read_need, ref_of
from protocol.errors import LocalProtocolError, PeerUnreachable, TransportError
from protocol.ids import PeerId
from protocol.merkle import leaf_hash
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import ExchangeHello
from protocol.rounds.messages.wire import decode_body, encode_body
from tests.averaging.rounds.exchange_world import (
    END,
    HAVE,
    NEED,
    ONE_SLICE,
    TWO_SLICES,
    Side,
    all_frames,
    answer_with,
    chunk_frame,
    contribution_of,
    hello_of,
    result_header,
    run_all,
    running,
    signed_header,
    talk,
    theta,
    three_sides,
    until_over,
)
from tests.averaging.rounds.round_world import CHUNK_BYTES, CODEC, GRID, UNIT, Party, RoundWorld
from tests.averaging.rounds.service_world import until

Clock = trio.testing.MockClock


# --- a whole attempt ----------------------------------------------------------------------------------------------------------


async def test_every_member_ends_with_the_same_results_of_all_slices(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        await run_all(sides, world.proposal(TWO_SLICES))
        assert [sorted(side.kept) for side in sides] == [[0, 4]] * 3
        for first_chunk in (0, 4):
            assert len({side.kept[first_chunk][1] for side in sides}) == 1
        update_N = CODEC.decode(sides[2].kept[0][1] + sides[2].kept[4][1], GRID.num_elements)
        torch.testing.assert_close(update_N, -(theta(0) + theta(1) + theta(2)) / 3, rtol=1e-5, atol=1e-6)
        header = sides[0].header(4)
        assert header.reducer == world.parties[1].peer
        assert [entry.peer for entry in header.included] == [party.peer for party in world.parties]
        assert [side.announced for side in sides] == [[0], [0], []], "each reducer tells of its slice once"


async def test_who_brings_something_is_told_once_contributions_and_results_alike(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides), running(sides, world.proposal(ONE_SLICE)) as exchanges:
        await until_over(exchanges)
        reducer, *members = (party.peer for party in world.parties)
        assert [exchange.arrivals.bringing() for exchange in exchanges] == [
            tuple(sorted(members)),
            (reducer,),
            (reducer,),
        ]
        assert [exchange.arrivals.bringing() for exchange in exchanges] == [(), (), ()]


async def test_an_exchange_that_is_over_is_gone_with_its_memory_at_once(autojump_clock: Clock) -> None:
    """One that somebody kept in a circle stayed until the garbage collector came: with 25M values 60 MB of each of twenty rounds."""
    async with three_sides() as (world, sides):
        gc.collect()
        gc.disable()
        try:
            async with running(sides, world.proposal(TWO_SLICES)) as exchanges:
                left = [weakref.ref(exchange) for exchange in exchanges]
            exchanges.clear()
            for side in sides:
                side.exchange = None
            await trio.sleep(1.0)
            assert [exchange() for exchange in left] == [None] * 3
        finally:
            gc.enable()


async def test_what_passes_is_counted_under_the_unit_and_the_codec_of_its_direction(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        results = codec_by_name("int8")
        for side in sides:
            side.result_codec = results
        proposal = world.proposal(ONE_SLICE)
        await run_all(sides, proposal)
        hello_bytes = len(encode_body(hello_of(proposal, contribution_of(world.parties[1], 1))))
        result_bytes = GRID.num_chunks * results.encoded_bytes(GRID.chunk_elements)
        word_bytes = len(ref_of(sides[0].header()).encode())
        contribution = range(GRID.num_chunks * CHUNK_BYTES + 5, GRID.num_chunks * (CHUNK_BYTES + 5) + 1)
        reducer, *members = ({(c.kind.unit, c.kind.codec): c for c in p.network.traffic().bulk} for p in world.parties)
        assert set(reducer) == {("", ""), (UNIT, CODEC.name), (UNIT, "int8")}
        assert reducer[UNIT, "int8"].bytes_up == 2 * (result_bytes + word_bytes)
        assert reducer["", ""].bytes_down == 2 * hello_bytes, "nobody knows of what a greeting is before it is read"
        for member in members:
            assert set(member) == {(UNIT, CODEC.name), (UNIT, "int8")}
            assert (member[UNIT, "int8"].bytes_up, member[UNIT, "int8"].bytes_down) == (len(NEED), result_bytes)
            assert member[UNIT, CODEC.name].bytes_up - hello_bytes - len(END) in contribution
            assert member[UNIT, CODEC.name].bytes_down == GRID.num_chunks + word_bytes
        up_bytes = sum(member[UNIT, CODEC.name].bytes_up for member in members)
        assert reducer[UNIT, CODEC.name].bytes_down == up_bytes - 2 * hello_bytes


async def test_what_is_sent_received_and_summed_is_told_of_with_its_bytes_at_the_reducer_and_at_members(
    autojump_clock: Clock,
) -> None:
    async with three_sides() as (world, sides):
        await run_all(sides, world.proposal(ONE_SLICE))
        whole = GRID.num_chunks * CHUNK_BYTES
        moved = [
            sorted((span.name, *span.detail.split()[:2], span.num_bytes) for span in side.spans if span.num_bytes)
            for side in sides
        ]
        received, sent = ("receive", "a", "contribution", whole), ("send", "a", "result", whole)
        assert moved[0] == [received, received, sent, sent]
        assert moved[1] == moved[2] == [("receive", "a", "result", whole), ("send", "our", "contribution", whole)]
        assert ["reduce" in {span.name for span in side.spans} for side in sides] == [True, False, False]
        assert {(span.unit, span.round_index) for side in sides for span in side.spans} == {(UNIT, 1)}


@pytest.mark.parametrize(("upload_s", "after_s"), [(None, 0.0), (0.1, 0.1 * KEEP_OWN_SHARE), (60.0, KEEP_OWN_AFTER_S)])
async def test_a_reducer_sends_its_result_before_it_keeps_it_itself(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, upload_s: float | None, after_s: float
) -> None:
    """Everybody waits for the first frames, and nobody for what is on the reducer's own disk."""
    monkeypatch.setattr(Exchange, "upload_s", lambda exchange, now_s: upload_s)
    async with three_sides() as (world, sides):
        await run_all(sides, world.proposal(ONE_SLICE))
        summed_s = max(span.end_s for span in sides[0].spans if span.name == "reduce")
        assert sides[0].kept_s[0] == pytest.approx(summed_s + after_s, abs=1e-6)


async def test_each_chunk_of_a_result_is_examined_at_every_member_its_reducer_included(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        await run_all(sides, world.proposal(TWO_SLICES))
        data = sides[0].kept[0][1] + sides[0].kept[4][1]
        chunks = [data[begin : begin + CHUNK_BYTES] for begin in range(0, len(data), CHUNK_BYTES)]
        assert [side.examined for side in sides] == [{n: leaf_hash(chunk) for n, chunk in enumerate(chunks)}] * 3


async def test_a_result_counts_as_examined_once_all_of_it_was_at_its_reducer_too(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        await run_all(sides, world.proposal(ONE_SLICE))
        assert [side.remembered for side in sides] == [{0: GRID.num_chunks}] * 3


async def test_a_member_with_nothing_to_offer_is_named_and_gets_the_results(autojump_clock: Clock) -> None:
    async with three_sides(silent=(2,)) as (world, sides):
        await run_all(sides, world.proposal(TWO_SLICES))
        assert trio.current_time() < 5.0, "nobody waits for the deadline"
        assert sorted(sides[2].kept) == [0, 4]
        assert sides[0].omitted() == [(world.parties[2].peer, "nothing to offer")]
        assert sides[2].kept[0][1] == sides[0].kept[0][1]


async def test_a_reducer_with_nothing_to_offer_reduces_the_others(autojump_clock: Clock) -> None:
    async with three_sides(silent=(0,)) as (world, sides):
        await run_all(sides, world.proposal(ONE_SLICE))
        assert sides[0].omitted() == [(world.parties[0].peer, "nothing to offer")]


async def test_a_slice_to_which_nobody_has_anything_to_offer_is_told_to_the_leader_at_once(
    autojump_clock: Clock,
) -> None:
    async with three_sides(silent=(0, 1, 2)) as (world, sides):
        async with trio.open_nursery() as nursery:
            for side in sides:
                nursery.start_soon(side.begin(world.proposal(ONE_SLICE)).run)
            with trio.fail_after(5.0):
                while not sides[0].announced:
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert sides[0].included == {0: []}
        assert not any(side.kept for side in sides)


async def test_a_contribution_that_comes_after_the_exchange_began_is_counted(autojump_clock: Clock) -> None:
    """A reducer's own, and a member's."""
    async with three_sides() as (world, sides), trio.open_nursery() as nursery:
        proposal = world.proposal(ONE_SLICE, reduce_within_s=60.0)
        exchanges = [side.begin(proposal, has_offer=number == 1) for number, side in enumerate(sides)]
        for exchange in exchanges:
            nursery.start_soon(exchange.run)
        await trio.sleep(3.0)
        assert sides[0].offers.get(world.parties[1].peer) is not None, "reducing does not wait for our own snapshot"
        for number in (2, 0):
            exchanges[number].offer(sides[number].contribution)
            exchanges[number].offer(None)  # the first word stands
        await until_over(exchanges)
        assert sides[0].omitted() == []
        nursery.cancel_scope.cancel()


async def test_a_dropped_member_closes_the_slice_and_the_omission_is_named_to_everybody(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        async with running(sides[:2], world.proposal(ONE_SLICE, reduce_within_s=50.0), within_s=3.0) as exchanges:
            await trio.sleep(1.0)
            assert sides[0].kept == {}
            exchanges[0].drop(world.parties[2].peer, "lost")
        assert sides[0].omitted() == [(world.parties[2].peer, "lost")]
        assert sides[1].kept[0][1] == sides[0].kept[0][1]


async def test_a_suspect_that_speaks_again_is_waited_for_like_anybody(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine = contribution_of(world.parties[2], 2)
        proposal = world.proposal(ONE_SLICE, reduce_within_s=20.0)
        async with running(sides[:1], proposal) as exchanges:
            await trio.sleep(0.1)
            exchanges[0].drop(world.parties[2].peer, "silent")
            stream = await world.parties[2].network.open_stream(world.parties[0].peer, EXCHANGE_CHANNEL, timeout_s=1.0)
            await stream.send_frame(encode_body(hello_of(proposal, mine)))
            await stream.receive_frame()
            async with running(sides[1:2], proposal):
                await trio.sleep(5.0)
                assert sides[0].kept == {}, "the others are whole, and it is waited for"
                for frame in all_frames(mine):
                    await stream.send_frame(frame)
        assert trio.current_time() < 10.0
        assert sides[0].omitted() == []


async def test_a_member_keeps_trying_while_its_reducer_cannot_be_reached(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        async with running(sides, world.proposal(ONE_SLICE, reduce_within_s=60.0), within_s=60.0):
            world.swarm.cut([world.parties[2].peer], [world.parties[0].peer])
            await trio.sleep(12.0)
            assert sides[2].kept == {}
            world.swarm.heal()
        assert sides[2].kept[0][1] == sides[0].kept[0][1]
        assert sides[0].omitted() == []


async def test_a_chunk_once_sent_is_not_sent_again_in_a_later_attempt(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        with trio.move_on_after(2.0):  # the third member never comes, so the first attempt has no end of its own
            await run_all(sides[:2], world.proposal(ONE_SLICE, reduce_within_s=60.0))
        assert sides[0].kept == {}
        sent_bytes = world.parties[1].network.traffic().bulk_bytes_up
        assert sent_bytes > GRID.num_chunks * CHUNK_BYTES
        again = world.proposal(ONE_SLICE, attempt=1)
        await run_all(sides, again)
        hello_bytes = len(encode_body(hello_of(again, contribution_of(world.parties[1], 1))))
        spent_bytes = world.parties[1].network.traffic().bulk_bytes_up - sent_bytes
        assert spent_bytes <= hello_bytes + len(END) + len(NEED)
        assert sides[0].omitted() == [], "what came in the first attempt counts in the second"


async def test_a_result_that_is_here_already_is_not_sent_again(autojump_clock: Clock) -> None:
    """The same sum of the same members in a later attempt: only its new header travels."""
    async with three_sides() as (world, sides):
        await run_all(sides, world.proposal(ONE_SLICE))
        kept, before = dict(sides[1].kept), world.parties[0].network.traffic().bulk_bytes_up
        await run_all(sides, world.proposal(ONE_SLICE, attempt=1))
        assert sides[1].kept == kept
        assert world.parties[0].network.traffic().bulk_bytes_up - before < 2 * GRID.num_chunks * CHUNK_BYTES + 4 * 400
        assert sides[1].num_kept == 1


async def test_a_result_that_was_on_its_way_when_its_attempt_ended_goes_on_where_it_was(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        chunks = sides[0].contribution.chunks if sides[0].contribution is not None else ()
        word = ref_of(result_header(world, chunks))
        asked: list[bytes | None] = []

        async def reduce(_: PeerId, stream: Stream) -> None:
            hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
            await stream.send_frame(bytes([1] * GRID.num_chunks))
            await stream.receive_frame()
            await stream.send_frame(word.encode())
            asked.append(await stream.receive_frame())
            if hello.ballot.attempt == 0:
                await stream.send_frame(b"".join(chunks[:2]))
                await trio.sleep_forever()
            await stream.send_frame(b"".join(chunks[2:]))

        world.parties[0].network.serve_streams(EXCHANGE_CHANNEL, reduce)
        with trio.move_on_after(2.0):
            await run_all([sides[1]], world.proposal(ONE_SLICE))
        assert sides[1].kept == {}
        await run_all([sides[1]], world.proposal(ONE_SLICE, attempt=1))
        assert asked == [need_from(0), need_from(2)]
        assert sides[1].kept[0][1] == b"".join(chunks)
        assert sorted(sides[1].examined) == list(range(GRID.num_chunks))


async def test_which_results_are_on_their_way_is_told_while_they_are(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        chunks = sides[0].contribution.chunks if sides[0].contribution is not None else ()
        word = ref_of(result_header(world, chunks))

        async def reduce(_: PeerId, stream: Stream) -> None:
            await stream.receive_frame()
            await stream.send_frame(bytes([1] * GRID.num_chunks))
            await stream.receive_frame()
            await stream.send_frame(word.encode())
            await stream.receive_frame()
            await trio.sleep(1.0)
            await stream.send_frame(b"".join(chunks[:2]))
            await trio.sleep(1.0)
            await stream.send_frame(b"".join(chunks[2:]))

        world.parties[0].network.serve_streams(EXCHANGE_CHANNEL, reduce)
        async with running([sides[1]], world.proposal(ONE_SLICE)) as (exchange,):
            began_s = trio.current_time()
            await until(lambda: exchange.arrivals.coming_s(word.result_hash) >= began_s, 5.0)
            named_s = exchange.arrivals.coming_s(word.result_hash)
            await until(lambda: exchange.arrivals.coming_s(word.result_hash) > named_s, 5.0)
            assert exchange.arrivals.coming_s(word.result_hash) - named_s == pytest.approx(1.0, abs=0.1)
            await until_over([exchange])
            assert exchange.arrivals.coming_s(word.result_hash) == -inf
        assert sides[1].kept[0][1] == b"".join(chunks)


@pytest.mark.parametrize("is_reset", [False, True], ids=["hung up", "reset"])
async def test_a_result_goes_on_after_a_broken_stream_but_begins_anew_where_its_reducer_ended_it(
    is_reset: bool, autojump_clock: Clock
) -> None:
    """A reducer that hangs up early gave other bytes than it named: none of them are kept."""
    async with three_sides() as (world, sides):
        chunks = sides[0].contribution.chunks if sides[0].contribution is not None else ()
        word = ref_of(result_header(world, chunks))
        asked: list[bytes | None] = []

        async def reduce(_: PeerId, stream: Stream) -> None:
            await stream.receive_frame()
            await stream.send_frame(bytes([1] * GRID.num_chunks))
            await stream.receive_frame()
            await stream.send_frame(word.encode())
            asked.append(await stream.receive_frame())
            if len(asked) == 1:
                await stream.send_frame(b"".join(chunks[:2]))
                if is_reset:
                    await trio.sleep(0.1)  # a reset overtakes what was sent
                    raise TransportError("a line that broke", "")
                return
            await stream.send_frame(b"".join(chunks[read_need(asked[-1] or b"", GRID.num_chunks) :]))

        world.parties[0].network.serve_streams(EXCHANGE_CHANNEL, reduce)
        await run_all([sides[1]], world.proposal(ONE_SLICE))
        assert asked == [need_from(0), need_from(2 if is_reset else 0)]
        assert sides[1].kept[0][1] == b"".join(chunks)


class _LeftStream:
    """Takes all that is sent on it, as one of TLS does for a while after its other side has ended it; that is after so long."""

    FRAME_S = 0.01

    def __init__(self, remote: PeerId, leaves_after_s: float) -> None:
        self.remote, self._leaves_after_s, self.num_frames = remote, leaves_after_s, 0

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        await trio.sleep(self.FRAME_S)
        self.num_frames += 1

    async def receive_frame(self) -> bytes | None:
        await trio.sleep(self._leaves_after_s)
        return None


@pytest.mark.parametrize(("leaves_after_s", "num_frames"), [(2.5 * _LeftStream.FRAME_S, 2), (60.0, 5)])
async def test_a_reducer_stops_sending_a_result_to_a_member_that_leaves(
    leaves_after_s: float, num_frames: int, autojump_clock: Clock
) -> None:
    """A member whose attempt has ended drops what still comes: all of it would be sent for nothing."""
    async with three_sides() as (world, sides):
        await run_all(sides, world.proposal(ONE_SLICE))
        exchange, stream = sides[0].exchange, _LeftStream(world.parties[1].peer, leaves_after_s)
        result = exchange._reductions[0].result if exchange is not None else None
        assert exchange is not None
        assert result is not None
        await exchange._send_result(result, 0, stream.remote, cast(Stream, stream))
        assert stream.num_frames == num_frames


async def test_a_reducer_sends_the_rest_of_a_result_to_who_has_its_first_chunks(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine, proposal = sides[1].contribution, world.proposal(ONE_SLICE)
        assert mine is not None
        async with running([sides[0], sides[2]], proposal):
            frames = [*all_frames(mine)[:-1], need_from(4)]
            answers = await talk(world.parties[1], world.parties[0], hello_of(proposal, mine), frames)
        assert b"".join(answers[2:]) == sides[0].kept[0][1][4 * CHUNK_BYTES :]
        again = world.proposal(ONE_SLICE, attempt=1)
        async with running([sides[0], sides[2]], again):
            frames = [END, need_from(GRID.num_chunks + 1)]
            with pytest.raises(PeerUnreachable):
                await talk(world.parties[1], world.parties[0], hello_of(again, mine), frames)


async def test_a_broken_stream_goes_on_with_the_missing_chunks_alone(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine = sides[1].contribution
        assert mine is not None
        proposal = world.proposal(ONE_SLICE)
        half = [chunk_frame(chunk, mine.chunks[chunk]) for chunk in range(3)]
        async with running(sides[:1], proposal):
            with pytest.raises(PeerUnreachable):
                await talk(world.parties[1], world.parties[0], hello_of(proposal, mine), [*half, b"X"])
            before = world.parties[1].network.traffic().bulk_bytes_up
            async with running(sides[1:], proposal):
                pass
        sent_bytes = world.parties[1].network.traffic().bulk_bytes_up - before
        again_bytes = sent_bytes - len(encode_body(hello_of(proposal, mine)))
        rest = [chunk_frame(3, mine.chunks[3]), chunk_frame(4, b"".join(mine.chunks[4:]))]
        assert again_bytes == sum(map(len, rest)) + len(END) + len(NEED)


async def test_streams_of_an_attempt_that_ends_are_let_go(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        with trio.move_on_after(2.0):
            await run_all(sides[:2], world.proposal(ONE_SLICE, reduce_within_s=60.0))
        await trio.sleep(1.0)
        assert sides[0].num_serving == 0
        assert sides[0].exchange is not None
        assert sides[0].exchange.is_over


async def test_a_member_that_stalls_in_its_chunks_is_let_go_with_the_attempt(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides), trio.open_nursery() as nursery:
        mine, proposal = sides[1].contribution, world.proposal(ONE_SLICE, reduce_within_s=60.0)
        assert mine is not None
        stalling = [chunk_frame(0, mine.chunks[0])]
        errors: list[PeerUnreachable] = []

        async def stall() -> None:
            try:
                await talk(world.parties[1], world.parties[0], hello_of(proposal, mine), stalling)
            except PeerUnreachable as error:
                errors.append(error)

        with trio.move_on_after(2.0):
            async with running(sides[:1], proposal):
                nursery.start_soon(stall)
        await trio.sleep(1.0)
        assert sides[0].num_serving == 0
        assert len(errors) == 1


async def test_a_member_that_does_not_say_whether_it_needs_the_result_is_not_waited_for(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine, proposal = sides[1].contribution, world.proposal(ONE_SLICE, reduce_within_s=60.0)
        assert mine is not None
        async with running([sides[0], sides[2]], proposal):
            answers = await talk(world.parties[1], world.parties[0], hello_of(proposal, mine), all_frames(mine)[:-1])
        assert len(answers) == 2, "the list of chunks and the word, and then the end"
        assert sides[0].num_serving == 0


async def test_streams_to_reducers_are_open_before_our_contribution_is_ready(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        proposal = world.proposal(ONE_SLICE, reduce_within_s=60.0)
        async with trio.open_nursery() as nursery:
            late = sides[1].begin(proposal, has_offer=False)
            for each in (late, *(side.begin(proposal) for side in (sides[0], sides[2]))):
                nursery.start_soon(each.run)
            await trio.sleep(5.0)
            assert sides[0].num_serving == 2, "the late one's stream is there, and its contribution is not"
            late.offer(sides[1].contribution)
            offered_s = trio.current_time()
            await until_over([late])
            assert trio.current_time() - offered_s < 1.0
            nursery.cancel_scope.cancel()
        assert sides[0].omitted() == []


async def test_a_stream_that_waits_too_long_for_our_contribution_is_left_and_opened_again(
    autojump_clock: Clock,
) -> None:
    async with three_sides() as (world, sides):
        proposal = world.proposal(ONE_SLICE, reduce_within_s=60.0)
        async with trio.open_nursery() as nursery:
            late = sides[1].begin(proposal, has_offer=False)
            for each in (late, *(side.begin(proposal) for side in (sides[0], sides[2]))):
                nursery.start_soon(each.run)
            await trio.sleep(OPEN_EARLY_S + 2.0)
            assert sides[0].num_serving == 1
            late.offer(sides[1].contribution)
            await until_over([late])
            nursery.cancel_scope.cancel()
        assert sides[0].omitted() == []
        assert sides[1].kept[0][1] == sides[0].kept[0][1]


async def test_results_wait_while_contributions_to_our_own_slice_come_and_no_longer_than_they_took_so_far(
    autojump_clock: Clock,
) -> None:
    """The third member brings the second one's slice late: the second one's line is for that, and not for the first one's result."""
    async with three_sides() as (world, sides):
        mine, proposal = contribution_of(world.parties[2], 2), world.proposal(TWO_SLICES, reduce_within_s=60.0)
        async with running(sides[:2], proposal):
            await trio.sleep(2.0)
            first = [*(chunk_frame(number, mine.chunks[number]) for number in range(4)), END, NEED]
            await talk(world.parties[2], world.parties[0], hello_of(proposal, mine), first)
            closed_s = trio.current_time()
            assert 0 in sides[0].kept
            await trio.sleep(1.5)
            assert 0 not in sides[1].kept
            await trio.sleep(1.0)
            assert 0 in sides[1].kept, f"after {closed_s:.1f} s of waiting it comes"
            second = [*(chunk_frame(number, mine.chunks[number]) for number in (4, 5)), END, NEED]
            await talk(world.parties[2], world.parties[1], hello_of(proposal, mine, 1), second)
        assert sides[1].kept[0][1] == sides[0].kept[0][1]


async def test_a_result_is_taken_while_the_last_few_chunks_of_our_own_slice_are_still_to_come(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask for it takes as long as these take to come."""
    monkeypatch.setattr("averaging.rounds.exchange.reduction.NEARLY_SHARE", 0.5)
    async with three_sides() as (world, sides):
        mine, proposal = contribution_of(world.parties[2], 2), world.proposal(TWO_SLICES, reduce_within_s=60.0)
        async with running(sides[:2], proposal):
            await trio.sleep(2.0)
            first = [*(chunk_frame(number, mine.chunks[number]) for number in range(4)), END, NEED]
            await talk(world.parties[2], world.parties[0], hello_of(proposal, mine), first)
            assert 0 in sides[0].kept
            await trio.sleep(1.0)
            assert 0 not in sides[1].kept
            begun = [chunk_frame(4, mine.chunks[4]), b"X"]
            with pytest.raises(PeerUnreachable):
                await talk(world.parties[2], world.parties[1], hello_of(proposal, mine, 1), begun)
            await trio.sleep(0.1)
            assert 0 in sides[1].kept
            assert 4 not in sides[1].kept
            rest = [chunk_frame(5, mine.chunks[5]), END, NEED]
            await talk(world.parties[2], world.parties[1], hello_of(proposal, mine, 1), rest)
        assert sides[1].kept[0][1] == sides[0].kept[0][1]


# --- slices that move ---------------------------------------------------------------------------------------------------------


async def test_a_member_that_dies_after_half_of_its_chunks_were_summed_is_taken_out_of_the_sum(
    autojump_clock: Clock,
) -> None:
    async with three_sides() as (world, sides):
        dying = sides[1].contribution
        assert dying is not None
        proposal = world.proposal(ONE_SLICE, reduce_within_s=60.0)
        half = [chunk_frame(chunk, dying.chunks[chunk]) for chunk in range(3)]
        async with running([sides[0], sides[2]], proposal) as exchanges:
            with pytest.raises(PeerUnreachable):
                await talk(world.parties[1], world.parties[0], hello_of(proposal, dying), [*half, b"X"])
            await trio.sleep(1.0)
            world.swarm.kill(world.parties[1].peer)
            exchanges[0].drop(world.parties[1].peer, "lost")
        mean_N = torch.div(torch.add(theta(0), theta(2)), -2.0)
        got_N = torch.frombuffer(bytearray(sides[2].kept[0][1]), dtype=torch.float32)
        torch.testing.assert_close(got_N, mean_N)
        assert sides[0].omitted() == [(world.parties[1].peer, "lost")]


async def test_a_late_chunk_with_another_hash_spoils_its_frame_and_the_true_one_is_counted_after_all(
    autojump_clock: Clock,
) -> None:
    async with three_sides() as (world, sides):
        mine = sides[1].contribution
        assert mine is not None
        proposal = world.proposal(ONE_SLICE, reduce_within_s=60.0)
        spoilt = bytearray(b"".join(mine.chunks[3:]))
        spoilt[-1] ^= 1
        frames = [chunk_frame(0, b"".join(mine.chunks[:3])), chunk_frame(3, bytes(spoilt))]
        async with running([sides[0], sides[2]], proposal):
            with pytest.raises(PeerUnreachable):
                await talk(world.parties[1], world.parties[0], hello_of(proposal, mine), [*frames, END])
            offer = sides[0].offers.get(world.parties[1].peer)
            assert offer is not None
            assert sorted(offer.chunks) == [0, 1, 2]
            async with running(sides[1:2], proposal):
                pass
        assert sides[0].omitted() == []
        assert sides[1].kept[0][1] == sides[0].kept[0][1]


async def test_a_mended_exchange_keeps_what_kept_its_reducer_and_sends_only_what_moved(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        world.swarm.kill(world.parties[1].peer)
        living = [sides[0], sides[2]]
        proposal = world.proposal(TWO_SLICES, reduce_within_s=60.0)
        async with running(living, proposal) as exchanges:
            exchanges[0].drop(world.parties[1].peer, "lost")
            await trio.sleep(2.0)
            assert [sorted(side.kept) for side in living] == [[0], [0]], "the slice of the dead is with nobody"
            assert not exchanges[1].is_over
            before = [side.party.network.traffic().bulk_bytes_up for side in living]
            mended = world.proposal(((0, 4, 0), (4, 6, 2)), reduce_within_s=60.0)
            for exchange in exchanges:
                exchange.mend(mended)
            exchanges[1].drop(world.parties[1].peer, "lost")
        assert [sorted(side.kept) for side in living] == [[0, 4], [0, 4]]
        assert sides[0].omitted(4) == [(world.parties[1].peer, "lost")]
        assert sides[0].announced == [0], "what kept its reducer is not summed again"
        mine = contribution_of(world.parties[0], 0)
        moved_bytes = len(encode_body(hello_of(mended, mine, 1))) + 2 * (5 + CHUNK_BYTES) + 2
        assert living[0].party.network.traffic().bulk_bytes_up - before[0] == moved_bytes


async def test_a_slice_that_comes_to_us_counts_whom_we_were_told_to_leave_out(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        living = sides[:2]
        async with running(living, world.proposal(((0, 6, 2),), reduce_within_s=60.0)) as exchanges:
            world.swarm.kill(world.parties[2].peer)
            exchanges[0].drop(world.parties[2].peer, "lost")
            await trio.sleep(1.0)
            for exchange in exchanges:
                exchange.mend(world.proposal(ONE_SLICE, reduce_within_s=60.0))
        assert trio.current_time() < 10.0
        assert sides[0].omitted() == [(world.parties[2].peer, "lost")]


async def test_members_who_wait_for_a_slice_that_moves_away_are_let_go(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        async with running(sides[:2], world.proposal(ONE_SLICE, reduce_within_s=60.0)) as exchanges:
            await trio.sleep(1.0)
            assert sides[0].num_serving == 1
            for exchange in exchanges:
                exchange.drop(world.parties[2].peer, "lost")
                exchange.mend(world.proposal(((0, 6, 1),), reduce_within_s=60.0))
            await trio.sleep(0.2)
            assert sides[0].num_serving == 0
        assert sides[0].kept[0][0].reducer == world.parties[1].peer


async def test_a_mended_exchange_goes_on_after_all_was_done(autojump_clock: Clock) -> None:
    """A leader that lost a result asks for the slice again, of somebody else."""
    async with three_sides() as (world, sides), running(sides, world.proposal(ONE_SLICE)) as exchanges:
        await until_over(exchanges)
        for exchange in exchanges:
            exchange.mend(world.proposal(((0, 6, 1),)))
        assert not any(exchange.is_over for exchange in exchanges)
        await until_over(exchanges)
        assert sides[1].announced == [0]


async def test_a_slice_whose_result_cannot_be_kept_is_given_up_and_its_members_let_go(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        sides[0].is_disk_full = True
        async with running(sides, world.proposal(ONE_SLICE)) as exchanges:
            await until_over(exchanges[:1])
            await trio.sleep(0.2)
            assert (sides[0].announced, sides[0].num_serving) == ([], 0)
            for exchange in exchanges:
                exchange.mend(world.proposal(((0, 6, 1),)))
            await until_over(exchanges[1:])
            assert sides[1].omitted() == [], "the others go on without it"
            sides[0].is_disk_full = False
        assert sides[0].kept[0][1] == sides[2].kept[0][1], "it takes the result as soon as there is room"


# --- what a reducer refuses ---------------------------------------------------------------------------------------------------


async def _assert_refused(
    world: RoundWorld,
    sides: list[Side],
    hello: ExchangeHello,
    frames: Sequence[bytes],
    why: str = "late",
    sender: Party | None = None,
) -> None:
    """The stream is reset, and the attempt ends at its deadline without the member, whom its reducer names with the reason."""
    async with running(sides[:2], world.proposal(ONE_SLICE)):
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await talk(sender or world.parties[2], world.parties[0], hello, frames)
    ((peer, reason),) = sides[0].omitted()
    assert peer == world.parties[2].peer
    assert reason == why if why == "late" else reason.startswith(f"what it sent was refused: {why}")


async def test_a_whole_contribution_by_hand_is_taken(autojump_clock: Clock) -> None:
    """The valid case from which the refusals below differ."""
    async with three_sides() as (world, sides):
        mine = contribution_of(world.parties[2], 2)
        proposal = world.proposal(ONE_SLICE)
        async with running(sides[:2], proposal):
            answers = await talk(world.parties[2], world.parties[0], hello_of(proposal, mine), all_frames(mine))
            again = await talk(world.parties[2], world.parties[0], hello_of(proposal, mine), [END, HAVE])
        assert answers[0] == bytes(GRID.num_chunks)
        assert b"".join(answers[2:]) == sides[0].kept[0][1]
        assert again == [bytes([1] * GRID.num_chunks), answers[1]], "who has the bytes gets the word alone"
        assert sides[0].omitted() == []


Spoil = Callable[[EncodedContribution], list[bytes]]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        pytest.param(lambda mine: [chunk_frame(0, mine.chunks[1])], "chunk 0 with another hash", id="another hash"),
        pytest.param(
            lambda mine: [chunk_frame(0, mine.chunks[0] + bytes(4))], "chunk 1 of 4 bytes", id="longer than its chunk"
        ),
        pytest.param(
            lambda mine: [chunk_frame(0, bytes(MAX_FRAME_BYTES - 5))],
            f"a frame of {MAX_FRAME_BYTES} bytes; expected at most {5 + 6 * CHUNK_BYTES}, the whole slice",
            id="as long as a frame can be",
        ),
        pytest.param(
            lambda mine: [chunk_frame(1, b"".join(mine.chunks))],
            f"{6 * CHUNK_BYTES} bytes from chunk 1 on; expected chunks up to 6",
            id="more chunks than follow",
        ),
        pytest.param(lambda mine: [chunk_frame(0, mine.chunks[0][:-1])], "chunk 0 of 39 bytes", id="shorter"),
        pytest.param(lambda mine: [chunk_frame(6, mine.chunks[0])], "frame b'C' for chunk 6", id="a chunk too many"),
        pytest.param(
            lambda mine: [b"X" + chunk_frame(0, mine.chunks[0])[1:]], "frame b'X' for chunk 0", id="unknown tag"
        ),
        pytest.param(lambda mine: [b"C"], "a frame of 1 bytes; expected a chunk", id="no chunk at all"),
    ],
)
async def test_a_stream_with_a_bad_chunk_is_reset_nothing_of_it_counts_and_its_sender_is_named_with_the_reason(
    spoil: Spoil, why: str, autojump_clock: Clock
) -> None:
    async with three_sides() as (world, sides):
        mine = contribution_of(world.parties[2], 2)
        hello = hello_of(world.proposal(ONE_SLICE), mine)
        await _assert_refused(world, sides, hello, [*spoil(mine), *all_frames(mine)], why)


async def test_a_frame_above_the_cap_never_leaves(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine = contribution_of(world.parties[2], 2)
        sides[0].begin(world.proposal(ONE_SLICE))
        with pytest.raises(LocalProtocolError):
            await talk(
                world.parties[2],
                world.parties[0],
                hello_of(world.proposal(ONE_SLICE), mine),
                [bytes(MAX_FRAME_BYTES + 1)],
            )


async def test_a_chunk_of_another_slice_is_refused(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine = contribution_of(world.parties[2], 2)
        proposal = world.proposal(TWO_SLICES)
        sides[0].begin(proposal)
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await talk(world.parties[2], world.parties[0], hello_of(proposal, mine), [chunk_frame(4, mine.chunks[4])])


@pytest.mark.parametrize("first_chunk", [4, 1, 6])
async def test_a_slice_that_the_reducer_does_not_have_is_refused(first_chunk: int, autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine = contribution_of(world.parties[2], 2)
        proposal = world.proposal(TWO_SLICES)
        sides[0].begin(proposal)
        hello = hello_of(proposal, mine, first_chunk=first_chunk)
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await talk(world.parties[2], world.parties[0], hello, all_frames(mine))


def _spoilt(header: bytes) -> bytes:
    return header[:-80] + bytes([header[-80] ^ 1]) + header[-79:]


def _of_another_session(party: Party) -> EncodedContribution:
    mine = contribution_of(party, 2)
    return replace(mine, header=signed_header(party, mine, member=Member(party.peer, 1, 2)))


Forge = Callable[[RoundWorld, EncodedContribution], EncodedContribution]


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        pytest.param(
            lambda w, mine: replace(mine, header=_spoilt(mine.header)), "a bad signature", id="changed after signing"
        ),
        pytest.param(
            lambda w, mine: replace(mine, header=signed_header(w.stranger, mine, member=w.parties[2].member)),
            "a contribution of",
            id="signed by another",
        ),
        pytest.param(lambda w, mine: contribution_of(w.parties[1], 1), "a contribution of", id="another member's own"),
        pytest.param(
            lambda w, mine: _of_another_session(w.parties[2]),
            "a contribution of",
            id="of a session that the proposal does not name",
        ),
        pytest.param(
            lambda w, mine: replace(mine, header=signed_header(w.parties[2], mine, codec="int4")),
            "a contribution to another round or in another codec",
            id="in a codec that the manifest does not name",
        ),
        pytest.param(
            lambda w, mine: replace(mine, header=mine.header[:16] + b"\x7f\xff" + mine.header[18:]),
            "a message of protocol version 32767",
            id="of another version",
        ),
    ],
)
async def test_a_contribution_with_a_false_header_is_refused_and_its_sender_is_named_with_the_reason(
    forge: Forge, why: str, autojump_clock: Clock
) -> None:
    async with three_sides() as (world, sides):
        mine = forge(world, contribution_of(world.parties[2], 2))
        await _assert_refused(world, sides, hello_of(world.proposal(ONE_SLICE), mine), all_frames(mine), why)


async def test_a_peer_that_is_no_member_is_refused(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        mine = contribution_of(world.stranger, 9)
        hello = hello_of(world.proposal(ONE_SLICE), mine)
        await _assert_refused(world, sides, hello, all_frames(mine), sender=world.stranger)


async def test_a_peer_that_is_no_member_does_not_get_the_result_either(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        hello = replace(
            hello_of(world.proposal(ONE_SLICE), contribution_of(world.stranger, 9)), contribution=b"", chunk_hashes=b""
        )
        await _assert_refused(world, sides, hello, [END], sender=world.stranger)


async def test_a_restarted_member_may_offer_again_in_an_attempt_that_names_its_session(autojump_clock: Clock) -> None:
    """And what its session before had sent is no longer counted: who sent it died with what it was to be taken out of."""
    async with three_sides() as (world, sides):
        with trio.move_on_after(2.0):
            await run_all([sides[0], sides[2]], world.proposal(ONE_SLICE, reduce_within_s=60.0))
        first = sides[0].offers.get(world.parties[2].peer)
        assert first is not None
        world.parties[2].boot()
        second = contribution_of(world.parties[2], 7)
        proposal = world.proposal(ONE_SLICE, attempt=1)
        async with running(sides[:2], proposal):
            await talk(world.parties[2], world.parties[0], hello_of(proposal, second), all_frames(second))
        roots = [entry.root for entry in sides[0].kept[0][0].included if entry.peer == world.parties[2].peer]
        assert roots == [second.root] != [first.header.root]


# --- what a member does not take ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "other bytes",
        "another signer",
        "another attempt",
        "another slice",
        "cut short",
        "too long",
        "nothing",
        "garbage",
    ],
)
async def test_a_false_result_is_not_kept_and_the_true_one_is_asked_for_again(
    fault: str, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the leader, which a reducer sends its signed header."""
    monkeypatch.setattr("averaging.rounds.exchange.result_receiver.WRITE_BYTES", 1)
    async with three_sides() as (world, sides):
        reducer, leader = world.parties[0], world.parties[1]
        chunks = sides[0].contribution.chunks if sides[0].contribution is not None else ()
        proposal = replace(world.proposal(ONE_SLICE), ballot=Ballot(0, leader.peer))

        def header(**changes: object) -> bytes:
            return encode_body(result_header(world, chunks, **{"ballot": proposal.ballot, **changes}))

        true = [reducer.sign(header()), *chunks]
        false = {
            "other bytes": [true[0], chunks[1], *chunks[1:]],
            "another signer": [world.parties[2].sign(header()), *chunks],
            "another attempt": [reducer.sign(header(ballot=Ballot(1, leader.peer))), *chunks],
            "another slice": [reducer.sign(header(first_chunk=1)), *chunks],
            "cut short": true[:-1],
            "too long": [true[0], chunks[0] + bytes(4), *chunks[1:]],
            "nothing": [],
            "garbage": [b"no envelope", *chunks],
        }[fault]
        await answer_with(world, sides[1], proposal, [false, true])
        assert sides[1].num_kept == 1
        assert encode_body(sides[1].header()) == header()
        assert sides[1].kept[0][1] == b"".join(chunks)
        assert {begun.num_bytes for begun in sides[1].begun} == {0}, "what came of a false one is gone from the disk"


@pytest.mark.parametrize("fault", ["other bytes", "another slice", "cut short", "too long", "nothing", "garbage"])
async def test_what_a_false_word_names_is_not_kept_by_a_member_either(fault: str, autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        chunks = sides[0].contribution.chunks if sides[0].contribution is not None else ()
        proposal = world.proposal(ONE_SLICE)
        word = ref_of(result_header(world, chunks))
        true = [word.encode(), *chunks]
        false = {
            "other bytes": [true[0], chunks[1], *chunks[1:]],
            "another slice": [replace(word, first_chunk=1).encode(), *chunks],
            "cut short": true[:-1],
            "too long": [true[0], chunks[0] + bytes(4), *chunks[1:]],
            "nothing": [],
            "garbage": [b"no word", *chunks],
        }[fault]
        await answer_with(world, sides[1], proposal, [false, true])
        assert sides[1].num_kept == 1
        assert sides[1].kept[0] == (word, b"".join(chunks))


async def test_a_reducer_that_gives_other_bytes_again_and_again_is_asked_twice_and_the_bytes_are_looked_for_elsewhere(
    autojump_clock: Clock,
) -> None:
    """Gathering a record's results waits while streams deliver anything."""
    async with three_sides() as (world, sides):
        chunks = sides[0].contribution.chunks if sides[0].contribution is not None else ()
        false = [ref_of(result_header(world, chunks)).encode(), chunks[1], *chunks[1:]]
        began_s = trio.current_time()
        await answer_with(world, sides[1], world.proposal(ONE_SLICE), [false, false])
        assert sides[1].kept == {}
        assert trio.current_time() - began_s < 5.0
