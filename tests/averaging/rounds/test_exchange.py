from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
import trio
import trio.testing

from averaging.network.offload import InlineOffload
from averaging.network.seams import MAX_FRAME_BYTES, Stream
from averaging.rounds.contribution import EncodedContribution, encode_contribution, result_root
from averaging.rounds.exchange import EXCHANGE_CHANNEL, Exchange, ExchangeTools
from averaging.rounds.reduction import Offers
from protocol.errors import LocalProtocolError, PeerUnreachable
from protocol.ids import PeerId, Root
from protocol.rounds.messages import ContributionHeader, ExchangeHello, Included, Member, Proposal, ResultHeader
from protocol.wire import decode_body, encode_body
from tests.averaging.rounds.round_world import (
    CHUNK_BYTES,
    CODEC,
    GRID,
    RUN_ID,
    TOKENS,
    UNIT,
    VERIFIER,
    Party,
    RoundWorld,
    open_world,
)

Clock = trio.testing.MockClock
END = b"E"
TWO_SLICES = ((0, 4, 0), (4, 6, 1))
ONE_SLICE = ((0, 6, 0),)


@dataclass
class Side:
    """One member's end of an exchange: its offers, what it kept and announced, and the attempt that runs."""

    party: Party
    contribution: EncodedContribution | None
    offers: Offers = field(default_factory=lambda: Offers(RUN_ID, VERIFIER, CODEC, GRID))
    kept: dict[int, tuple[ResultHeader, bytes]] = field(default_factory=dict)
    num_kept: int = 0
    exchange: Exchange | None = None
    num_serving: int = 0

    async def _keep(self, header: ResultHeader, data: bytes) -> None:
        self.kept[header.first_chunk] = (header, data)
        self.num_kept += 1

    async def _announce(self, ready: object) -> None:
        """Nobody listens here."""

    async def _serve(self, sender: PeerId, stream: Stream) -> None:
        self.num_serving += 1
        try:
            hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
            assert self.exchange is not None
            await self.exchange.serve(sender, hello, stream)
        finally:
            self.num_serving -= 1

    def begin(self, proposal: Proposal) -> Exchange:
        party = self.party
        tools = ExchangeTools(
            RUN_ID,
            party.member,
            party.network,
            InlineOffload(),
            VERIFIER,
            CODEC,
            GRID,
            party.seal,
            self._keep,
            self._announce,
        )
        self.exchange = Exchange(proposal, tools, self.offers, self.contribution)
        party.network.serve_streams(EXCHANGE_CHANNEL, self._serve)
        return self.exchange


def _theta(seed: int) -> torch.Tensor:
    return torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(seed))


def _signed(party: Party, encoded: EncodedContribution, **changes: object) -> bytes:
    genesis = party.world.genesis.head
    header = ContributionHeader(UNIT, genesis, party.member, TOKENS, CODEC.name, encoded.root, genesis, Root(bytes(32)))
    return party.sign(encode_body(replace(header, **changes)))  # type: ignore[arg-type]


def _contribution(party: Party, seed: int) -> EncodedContribution:
    encoded = encode_contribution(torch.zeros(GRID.num_elements), _theta(seed), TOKENS, CODEC, GRID)
    return replace(encoded, header=_signed(party, encoded))


def _hello(proposal: Proposal, mine: EncodedContribution, **changes: object) -> ExchangeHello:
    hello = ExchangeHello(UNIT, proposal.base, proposal.ballot, 0, mine.header, b"".join(mine.hashes))
    return replace(hello, **changes)  # type: ignore[arg-type]


def _frame(chunk: int, data: bytes) -> bytes:
    return b"C" + chunk.to_bytes(4, "little") + data


@asynccontextmanager
async def _three(silent: Sequence[int] = ()) -> AsyncIterator[tuple[RoundWorld, list[Side]]]:
    """Three members with a contribution each, but for the silent ones."""
    async with open_world() as world:
        yield (
            world,
            [Side(p, None if n in silent else _contribution(p, n)) for n, p in enumerate(world.parties)],
        )


async def _run_all(sides: Sequence[Side], proposal: Proposal, within_s: float = 20.0) -> None:
    with trio.fail_after(within_s):
        async with trio.open_nursery() as nursery:
            for exchange in [side.begin(proposal) for side in sides]:
                nursery.start_soon(exchange.run)


async def _talk(party: Party, reducer: Party, hello: ExchangeHello, frames: Sequence[bytes]) -> list[bytes]:
    """Speak to a reducer by hand; returns what it answers until the clean end.

    Raises:
        PeerUnreachable: it reset the stream.
    """
    stream = await party.network.open_stream(reducer.peer, EXCHANGE_CHANNEL, timeout_s=1.0)
    answers = []
    try:
        await stream.send_frame(encode_body(hello))
        for frame in frames:
            await stream.send_frame(frame)
        while (answer := await stream.receive_frame()) is not None:
            answers.append(answer)
    finally:
        await stream.aclose()
    return answers


def _omitted(side: Side, first_chunk: int = 0) -> list[tuple[PeerId, str]]:
    return [(omission.peer, omission.reason) for omission in side.kept[first_chunk][0].omitted]


# --- a whole attempt ----------------------------------------------------------------------------------------------------------


async def test_every_member_ends_with_the_same_results_of_all_slices(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        await _run_all(sides, world.proposal(TWO_SLICES))
        assert [sorted(side.kept) for side in sides] == [[0, 4]] * 3
        for first_chunk in (0, 4):
            assert len({side.kept[first_chunk][1] for side in sides}) == 1
        update_N = CODEC.decode(sides[2].kept[0][1] + sides[2].kept[4][1], GRID.num_elements)
        torch.testing.assert_close(update_N, -(_theta(0) + _theta(1) + _theta(2)) / 3, rtol=1e-5, atol=1e-6)
        header = sides[2].kept[4][0]
        assert header.reducer == world.parties[1].peer
        assert [entry.peer for entry in header.included] == [party.peer for party in world.parties]


async def test_a_member_with_nothing_to_offer_is_named_and_gets_the_results(autojump_clock: Clock) -> None:
    async with _three(silent=(2,)) as (world, sides):
        await _run_all(sides, world.proposal(TWO_SLICES))
        assert trio.current_time() < 5.0, "nobody waits for the deadline"
        assert sorted(sides[2].kept) == [0, 4]
        assert _omitted(sides[2]) == _omitted(sides[0]) == [(world.parties[2].peer, "nothing to offer")]


async def test_a_reducer_with_nothing_to_offer_reduces_the_others(autojump_clock: Clock) -> None:
    async with _three(silent=(0,)) as (world, sides):
        await _run_all(sides, world.proposal(ONE_SLICE))
        assert _omitted(sides[1]) == [(world.parties[0].peer, "nothing to offer")]


async def test_a_dropped_member_closes_the_slice_and_the_omission_is_named_to_everybody(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        proposal = world.proposal(ONE_SLICE, reduce_within_s=50.0)
        exchanges = [side.begin(proposal) for side in sides[:2]]
        with trio.fail_after(3.0):
            async with trio.open_nursery() as nursery:
                for exchange in exchanges:
                    nursery.start_soon(exchange.run)
                await trio.sleep(1.0)
                assert sides[0].kept == {}
                exchanges[0].drop(world.parties[2].peer, "lost")
        expected = [(world.parties[2].peer, "lost")]
        assert _omitted(sides[0]) == _omitted(sides[1]) == expected


async def test_a_suspect_that_speaks_again_is_waited_for_like_anybody(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        proposal = world.proposal(ONE_SLICE, reduce_within_s=20.0)
        exchanges = [side.begin(proposal) for side in sides[:2]]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchanges[0].run)
            await trio.sleep(0.1)
            exchanges[0].drop(world.parties[2].peer, "silent")
            stream = await world.parties[2].network.open_stream(world.parties[0].peer, EXCHANGE_CHANNEL, timeout_s=1.0)
            await stream.send_frame(encode_body(_hello(proposal, mine)))
            await stream.receive_frame()
            nursery.start_soon(exchanges[1].run)
            await trio.sleep(5.0)
            assert sides[0].kept == {}, "the others are whole, and it is waited for"
            for frame in _all_frames(mine):
                await stream.send_frame(frame)
        assert trio.current_time() < 10.0
        assert _omitted(sides[0]) == []


async def test_a_member_keeps_trying_while_its_reducer_cannot_be_reached(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        exchanges = [side.begin(world.proposal(ONE_SLICE, reduce_within_s=60.0)) for side in sides]
        world.swarm.cut([world.parties[2].peer], [world.parties[0].peer])
        with trio.fail_after(60.0):
            async with trio.open_nursery() as nursery:
                for exchange in exchanges:
                    nursery.start_soon(exchange.run)
                await trio.sleep(12.0)
                assert sides[2].kept == {}
                world.swarm.heal()
        assert sides[2].kept[0][1] == sides[0].kept[0][1]
        assert _omitted(sides[2]) == []


async def test_a_chunk_once_sent_is_not_sent_again_in_a_later_attempt(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        with trio.move_on_after(2.0):  # the third member never comes, so the first attempt has no end of its own
            await _run_all(sides[:2], world.proposal(ONE_SLICE, reduce_within_s=60.0))
        assert sides[0].kept == {}
        sent_bytes = world.parties[1].network.traffic().bulk_bytes_up
        assert sent_bytes > GRID.num_chunks * CHUNK_BYTES
        await _run_all(sides, world.proposal(ONE_SLICE, attempt=1))
        hello_bytes = len(encode_body(_hello(world.proposal(ONE_SLICE, attempt=1), _contribution(world.parties[1], 1))))
        assert world.parties[1].network.traffic().bulk_bytes_up - sent_bytes <= hello_bytes + len(END)
        assert _omitted(sides[1]) == [], "what came in the first attempt counts in the second"


async def test_a_broken_stream_goes_on_with_the_missing_chunks_alone(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = sides[1].contribution
        assert mine is not None
        proposal = world.proposal(ONE_SLICE)
        sides[0].begin(proposal)
        half = [_frame(chunk, mine.chunks[chunk]) for chunk in range(3)]
        with pytest.raises(PeerUnreachable):
            await _talk(world.parties[1], world.parties[0], _hello(proposal, mine), [*half, b"X"])
        before = world.parties[1].network.traffic().bulk_bytes_up
        await _run_all(sides, proposal)
        again_bytes = (
            world.parties[1].network.traffic().bulk_bytes_up - before - len(encode_body(_hello(proposal, mine)))
        )
        assert again_bytes == 3 * len(half[0]) + len(END)


async def test_streams_of_an_attempt_that_ends_are_let_go(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        with trio.move_on_after(2.0):
            await _run_all(sides[:2], world.proposal(ONE_SLICE, reduce_within_s=60.0))
        await trio.sleep(1.0)
        assert sides[0].num_serving == 0


# --- what a reducer refuses ---------------------------------------------------------------------------------------------------


async def _assert_refused(
    world: RoundWorld, sides: list[Side], hello: ExchangeHello, frames: Sequence[bytes], sender: Party | None = None
) -> None:
    """The stream is reset, and the attempt ends at its deadline with the member left out as late."""
    proposal = world.proposal(ONE_SLICE)
    exchanges = [side.begin(proposal) for side in sides[:2]]
    async with trio.open_nursery() as nursery:
        for exchange in exchanges:
            nursery.start_soon(exchange.run)
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await _talk(sender or world.parties[2], world.parties[0], hello, frames)
    assert _omitted(sides[0]) == [(world.parties[2].peer, "late")]


def _all_frames(mine: EncodedContribution) -> list[bytes]:
    return [*(_frame(number, chunk) for number, chunk in enumerate(mine.chunks)), END]


async def test_a_whole_contribution_by_hand_is_taken(autojump_clock: Clock) -> None:
    """What the refusals below differ from."""
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        proposal = world.proposal(ONE_SLICE)
        exchanges = [side.begin(proposal) for side in sides[:2]]
        async with trio.open_nursery() as nursery:
            for exchange in exchanges:
                nursery.start_soon(exchange.run)
            answers = await _talk(world.parties[2], world.parties[0], _hello(proposal, mine), _all_frames(mine))
        assert answers[0] == bytes(GRID.num_chunks)
        assert b"".join(answers[2:]) == sides[0].kept[0][1]
        assert _omitted(sides[0]) == []


Spoil = Callable[[EncodedContribution], list[bytes]]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda mine: [_frame(0, mine.chunks[1])], id="another hash"),
        pytest.param(lambda mine: [_frame(0, mine.chunks[0] + bytes(4))], id="longer than its chunk"),
        pytest.param(lambda mine: [_frame(0, bytes(MAX_FRAME_BYTES - 5))], id="as long as a frame can be"),
        pytest.param(lambda mine: [_frame(0, mine.chunks[0][:-1])], id="shorter than its chunk"),
        pytest.param(lambda mine: [_frame(6, mine.chunks[0])], id="a chunk that the unit has not"),
        pytest.param(lambda mine: [b"X" + _frame(0, mine.chunks[0])[1:]], id="unknown tag"),
        pytest.param(lambda mine: [b"C"], id="no chunk at all"),
    ],
)
async def test_a_stream_with_a_bad_chunk_is_reset_and_nothing_of_it_counts(spoil: Spoil, autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        hello = _hello(world.proposal(ONE_SLICE), mine)
        await _assert_refused(world, sides, hello, [*spoil(mine), *_all_frames(mine)])


async def test_a_frame_above_the_cap_never_leaves(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        sides[0].begin(world.proposal(ONE_SLICE))
        with pytest.raises(LocalProtocolError):
            await _talk(
                world.parties[2],
                world.parties[0],
                _hello(world.proposal(ONE_SLICE), mine),
                [bytes(MAX_FRAME_BYTES + 1)],
            )


async def test_a_chunk_of_another_slice_is_refused(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        proposal = world.proposal(TWO_SLICES)
        sides[0].begin(proposal)
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await _talk(world.parties[2], world.parties[0], _hello(proposal, mine), [_frame(4, mine.chunks[4])])


@pytest.mark.parametrize("first_chunk", [4, 1, 6])
async def test_a_slice_that_the_reducer_does_not_have_is_refused(first_chunk: int, autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        proposal = world.proposal(TWO_SLICES)
        sides[0].begin(proposal)
        hello = _hello(proposal, mine, first_chunk=first_chunk)
        with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
            await _talk(world.parties[2], world.parties[0], hello, _all_frames(mine))


async def test_a_header_changed_after_signing_is_refused(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        tampered = bytearray(mine.header)
        tampered[-80] ^= 1
        hello = _hello(world.proposal(ONE_SLICE), mine, contribution=bytes(tampered))
        await _assert_refused(world, sides, hello, _all_frames(mine))


async def test_a_header_signed_by_another_is_refused(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[2], 2)
        foreign = _signed(world.stranger, mine, member=world.parties[2].member)
        hello = _hello(world.proposal(ONE_SLICE), mine, contribution=foreign)
        await _assert_refused(world, sides, hello, _all_frames(mine))


async def test_a_member_cannot_bring_the_contribution_of_another(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.parties[1], 1)
        await _assert_refused(world, sides, _hello(world.proposal(ONE_SLICE), mine), _all_frames(mine))


async def test_a_peer_that_is_no_member_is_refused(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        mine = _contribution(world.stranger, 9)
        hello = _hello(world.proposal(ONE_SLICE), mine)
        await _assert_refused(world, sides, hello, _all_frames(mine), sender=world.stranger)


async def test_a_peer_that_is_no_member_does_not_get_the_result_either(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        hello = replace(
            _hello(world.proposal(ONE_SLICE), _contribution(world.stranger, 9)), contribution=b"", chunk_hashes=b""
        )
        await _assert_refused(world, sides, hello, [END], sender=world.stranger)


async def test_a_session_that_the_proposal_does_not_name_is_refused(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        late = world.parties[2]
        mine = _contribution(late, 2)
        header = _signed(late, mine, member=Member(late.peer, 1, 2))
        hello = _hello(world.proposal(ONE_SLICE), mine, contribution=header)
        await _assert_refused(world, sides, hello, _all_frames(mine))


async def test_a_second_root_of_one_incarnation_is_refused_in_a_new_session_as_well(autojump_clock: Clock) -> None:
    async with _three() as (world, sides):
        with trio.move_on_after(2.0):
            await _run_all([sides[0], sides[2]], world.proposal(ONE_SLICE, reduce_within_s=60.0))
        first = sides[0].offers.get(world.parties[2].peer)
        assert first is not None
        world.parties[2].boot()
        proposal = world.proposal(ONE_SLICE, attempt=1)
        exchanges = [side.begin(proposal) for side in sides[:2]]
        second = _contribution(world.parties[2], 7)
        async with trio.open_nursery() as nursery:
            for exchange in exchanges:
                nursery.start_soon(exchange.run)
            with pytest.raises(PeerUnreachable), trio.fail_after(1.0):
                await _talk(world.parties[2], world.parties[0], _hello(proposal, second), _all_frames(second))
        roots = [entry.root for entry in sides[0].kept[0][0].included if entry.peer == world.parties[2].peer]
        assert roots == [first.header.root]


# --- what a member does not take ----------------------------------------------------------------------------------------------


def _result(world: RoundWorld, chunks: Sequence[bytes], **changes: object) -> ResultHeader:
    included = Included(world.parties[0].peer, 1, Root(bytes(32)), TOKENS, world.genesis.head, Root(bytes(32)))
    proposal = world.proposal(ONE_SLICE)
    header = ResultHeader(
        UNIT,
        proposal.base,
        proposal.ballot,
        0,
        6,
        world.parties[0].peer,
        (included,),
        (),
        TOKENS,
        result_root(chunks),
    )
    return replace(header, **changes)  # type: ignore[arg-type]


async def _answer_with(world: RoundWorld, side: Side, answers: list[list[bytes]]) -> None:
    """Run one member against a reducer that gives these answers, one a stream; the last one is the true one."""
    left = list(answers)

    async def reduce(sender: PeerId, stream: Stream) -> None:
        await stream.receive_frame()
        await stream.send_frame(bytes([1] * GRID.num_chunks))
        await stream.receive_frame()
        for frame in left.pop(0):
            await stream.send_frame(frame)

    exchange = side.begin(world.proposal(ONE_SLICE))
    world.parties[0].network.serve_streams(EXCHANGE_CHANNEL, reduce)
    with trio.fail_after(10.0):
        await exchange.run()
    assert left == []


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
    fault: str, autojump_clock: Clock
) -> None:
    async with _three() as (world, sides):
        reducer = world.parties[0]
        chunks = sides[0].contribution.chunks if sides[0].contribution is not None else ()
        header = _result(world, chunks)
        true = [reducer.sign(encode_body(header)), *chunks]
        false = {
            "other bytes": [true[0], chunks[1], *chunks[1:]],
            "another signer": [world.parties[2].sign(encode_body(header)), *chunks],
            "another attempt": [
                reducer.sign(encode_body(_result(world, chunks, ballot=world.proposal(ONE_SLICE, attempt=1).ballot))),
                *chunks,
            ],
            "another slice": [reducer.sign(encode_body(_result(world, chunks, first_chunk=1))), *chunks],
            "cut short": true[:-1],
            "too long": [true[0], chunks[0] + bytes(4), *chunks[1:]],
            "nothing": [],
            "garbage": [b"no envelope", *chunks],
        }[fault]
        await _answer_with(world, sides[1], [false, true])
        assert sides[1].num_kept == 1
        assert sides[1].kept[0] == (header, b"".join(chunks))
