from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange import hash_frames
from averaging.rounds.exchange.carrier import CARRY_CHANNEL, hand_over, serve_carry, take_carried
from averaging.rounds.exchange.contribution_sender import END
from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL
from averaging.rounds.exchange.offered_contributions import MAX_CARRIED
from protocol.errors import PotluckError, TransportError
from protocol.ids import PeerId, UnitName
from protocol.merkle import MerkleTree
from protocol.rounds.messages.messages import Proposal
from protocol.rounds.messages.requests import CarryHello
from protocol.rounds.messages.wire import encode_body
from tests.averaging.rounds.exchange_world import (
    ONE_SLICE,
    TWO_SLICES,
    Side,
    chunk_frame,
    hello_of,
    running,
    talk,
    theta,
    three_sides,
    until_over,
)
from tests.averaging.rounds.round_world import CHUNK_BYTES, CODEC, GRID, TOKENS, UNIT, RoundWorld

Clock = trio.testing.MockClock


class Unit:
    """A unit's rounds at a side, as far as carrying goes."""

    def __init__(self, side: Side) -> None:
        self._side = side

    async def carry(self, sender: PeerId, hello: CarryHello, stream: Stream) -> None:
        """Take it."""
        await take_carried(self._side.offers, GRID, _over, sender, hello, stream)


async def _over(hashes: Sequence[bytes]) -> MerkleTree:
    return MerkleTree.over(hashes)


async def _anybody(_: PeerId) -> None:
    pass


def _serve(side: Side, units: Sequence[UnitName] = (UNIT,)) -> None:
    side.party.network.serve_streams(CARRY_CHANNEL, partial(serve_carry, _anybody, dict.fromkeys(units, Unit(side))))


def _hello(world: RoundWorld, side: Side) -> CarryHello:
    assert side.contribution is not None
    return CarryHello(UNIT, world.genesis.head, side.contribution.header)


async def _hand_over(world: RoundWorld, leaver: Side, to: Side) -> list[str]:
    """Returns whether the carrier took it on."""
    begun: list[str] = []
    assert leaver.contribution is not None
    await hand_over(
        leaver.party.network, to.party.peer, _hello(world, leaver), leaver.contribution, lambda: begun.append("begun")
    )
    return begun


@asynccontextmanager
async def _after_a_leaver() -> AsyncIterator[tuple[RoundWorld, list[Side]]]:
    """Two sides, the second of which carries what the third has left with it."""
    async with three_sides() as (world, sides):
        _serve(sides[1])
        assert await _hand_over(world, sides[2], sides[1]) == ["begun"]
        world.swarm.kill(sides[2].party.peer)
        yield world, sides[:2]


def _counted(sides: Sequence[Side], first_chunk: int) -> list[PeerId]:
    (found,) = {tuple(side.included[first_chunk]) for side in sides if first_chunk in side.included}
    return list(found)


async def test_a_leavers_contribution_counts_in_every_slice_as_if_it_had_stayed(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        async with running(sides, world.proposal(TWO_SLICES)):
            pass
        expected = [sides[0].kept[first_chunk][1] for first_chunk in (0, 4)]
    async with _after_a_leaver() as (world, sides):
        async with running(sides, world.proposal(TWO_SLICES)):
            for side in sides:
                assert side.exchange is not None
                side.exchange.drop(world.parties[2].peer, "left")
        everybody = [party.peer for party in world.parties]
        assert _counted(sides, 0) == _counted(sides, 4) == everybody
        assert [sides[0].kept[first_chunk][1] for first_chunk in (0, 4)] == expected


async def test_a_reducer_that_takes_the_leaver_for_gone_waits_while_its_carrier_brings_the_chunks(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _after_a_leaver() as (world, sides):
        usual = world.swarm.frame_delay_s

        def late_chunks(sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
            delay_s, is_reset = usual(sender, receiver, num_bytes)
            return delay_s + (1.0 if num_bytes == len(chunk_frame(0, bytes(CHUNK_BYTES))) else 0.0), is_reset

        monkeypatch.setattr(world.swarm, "frame_delay_s", late_chunks)
        sides[1].contribution = None  # all that the reducer waits for besides
        async with running(sides, world.proposal(ONE_SLICE)) as exchanges:
            for _ in range(40):
                exchanges[0].drop(world.parties[2].peer, "lost")
                await trio.sleep(0.05)
        assert _counted(sides, 0) == [world.parties[0].peer, world.parties[2].peer]


async def test_a_leaver_that_nobody_carries_is_left_out_as_before(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        world.swarm.kill(sides[2].party.peer)
        async with running(sides[:2], world.proposal(ONE_SLICE)) as exchanges:
            for exchange in exchanges:
                exchange.drop(world.parties[2].peer, "left")
        assert _counted(sides[:2], 0) == [party.peer for party in world.parties[:2]]
        assert sides[0].omitted() == [(world.parties[2].peer, "left")]


async def test_of_a_contribution_that_came_in_part_the_whole_slices_count(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        _serve(sides[1])
        mine = sides[2].contribution
        assert mine is not None
        stream = await sides[2].party.network.open_stream(sides[1].party.peer, CARRY_CHANNEL, timeout_s=1.0)
        await stream.send_frame(encode_body(_hello(world, sides[2])))
        assert await stream.receive_frame() == b"S"
        await stream.send_frame(b"".join(mine.hashes))
        for chunk in range(5):
            await stream.send_frame(chunk_frame(chunk, bytes(mine.chunks[chunk])))
        await trio.sleep(1.0)
        world.swarm.kill(sides[2].party.peer)
        async with running(sides[:2], world.proposal(TWO_SLICES)) as exchanges:
            for exchange in exchanges:
                exchange.drop(world.parties[2].peer, "left")
        assert world.parties[2].peer in _counted(sides[:2], 0)
        assert world.parties[2].peer not in _counted(sides[:2], 4)


async def test_nobody_counts_twice_where_a_member_brings_what_it_also_left_with_a_carrier(
    autojump_clock: Clock,
) -> None:
    async with three_sides() as (world, sides):
        _serve(sides[1])
        await _hand_over(world, sides[2], sides[1])
        async with running(sides, world.proposal(TWO_SLICES)):
            pass
        assert _counted(sides, 0) == _counted(sides, 4) == [party.peer for party in world.parties]
        update_N = CODEC.decode(sides[0].kept[0][1] + sides[0].kept[4][1], GRID.num_elements)
        mean_N = -(theta(0) + theta(1) + theta(2)) / 3
        assert (update_N - mean_N).abs().max() < 1e-5


# --- refused ------------------------------------------------------------------------------------------------------------------


async def test_who_carries_enough_already_refuses_in_a_line_and_the_leaver_asks_another(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        _serve(sides[1])
        for number in range(MAX_CARRIED):
            sides[1].offers._carried[PeerId(f"p{number}")] = sides[1].offers.begin_carried(
                sides[2].party.peer, _hello(world, sides[2])
            )
        del sides[1].offers._carried[sides[2].party.peer]
        with pytest.raises(TransportError):
            await _hand_over(world, sides[2], sides[1])


@pytest.mark.parametrize("trouble", ["another unit", "no hello", "it hangs up", "false bytes"])
async def test_a_bad_hand_over_is_refused_and_nothing_of_it_counts(trouble: str, autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        _serve(sides[1], () if trouble == "another unit" else (UNIT,))
        mine = sides[2].contribution
        assert mine is not None
        stream = await sides[2].party.network.open_stream(sides[1].party.peer, CARRY_CHANNEL, timeout_s=1.0)
        with pytest.raises(PotluckError):  # noqa: PT012 - which frame notices depends on the trouble
            await stream.send_frame(b"?" if trouble == "no hello" else encode_body(_hello(world, sides[2])))
            assert await stream.receive_frame() == b"S"
            if trouble == "it hangs up":
                await stream.aclose()
                raise TransportError("hung up", "nothing")
            await stream.send_frame(b"".join(mine.hashes))
            await stream.send_frame(chunk_frame(0, bytes(mine.chunks[1])))
            assert await stream.receive_frame() is None
        await trio.sleep(1.0)
        proposal = world.proposal(ONE_SLICE)
        assert all(not carried.here for carried in sides[1].offers.carried_in(proposal))


@pytest.mark.parametrize("number", [1, 2])
async def test_a_member_cannot_have_another_left_out_by_carrying_nothing_of_it(
    number: int, autojump_clock: Clock
) -> None:
    """A reducer knows what others have signed, and could send it to another one."""
    async with three_sides() as (world, sides):
        proposal = world.proposal(ONE_SLICE)
        mine, later = sides[2].contribution, sides[2]
        assert mine is not None
        async with running(sides[:2], proposal):
            await talk(sides[number].party, sides[0].party, hello_of(proposal, mine, carried=True), [END])
            exchange = later.begin(proposal)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(exchange.run)
                await until_over([exchange])
                nursery.cancel_scope.cancel()
        assert _counted(sides, 0) == [party.peer for party in world.parties]


async def test_bad_bytes_of_a_carried_contribution_are_a_reason_to_leave_its_owner_out_and_not_its_carrier(
    autojump_clock: Clock,
) -> None:
    async with three_sides() as (world, sides):
        proposal = world.proposal(ONE_SLICE)
        mine, owner, carrier = sides[2].contribution, world.parties[2], world.parties[1]
        assert mine is not None
        bad = [chunk_frame(0, bytes(mine.chunks[1]))]
        async with running(sides[:1], proposal):
            with pytest.raises(PotluckError), trio.fail_after(1.0):
                await talk(carrier, sides[0].party, hello_of(proposal, mine, carried=True), bad)
        why = dict(sides[0].omitted())
        assert why[carrier.peer] == "late"
        assert why[owner.peer].startswith("what it sent was refused: chunk 0 with another hash")


async def test_a_stranger_brings_nothing(autojump_clock: Clock) -> None:
    async with three_sides() as (world, sides):
        proposal: Proposal = world.proposal(ONE_SLICE)
        mine = sides[2].contribution
        assert mine is not None
        async with running(sides, proposal):
            with pytest.raises(PotluckError):
                await talk(world.stranger, sides[0].party, hello_of(proposal, mine, carried=True), [END])


async def test_hashes_go_in_frames_that_a_stream_takes(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_frames, "HASHES_AT_ONCE", 4)
    async with three_sides() as (world, sides):
        _serve(sides[1])
        assert await _hand_over(world, sides[2], sides[1]) == ["begun"]
        (carried,) = sides[1].offers.carried_in(world.proposal(ONE_SLICE))
        assert carried.is_whole
        assert carried.tokens == TOKENS


async def test_a_carrier_whose_reducer_is_gone_still_brings_its_own(autojump_clock: Clock) -> None:
    async with _after_a_leaver() as (world, sides):

        async def reset(sender: PeerId, stream: Stream) -> None:
            raise TransportError("a broken link", "one that works")

        sides[0].party.network.serve_streams(EXCHANGE_CHANNEL, reset)
        exchange = sides[1].begin(world.proposal(ONE_SLICE))
        sides[1].party.network.serve_streams(EXCHANGE_CHANNEL, reset)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            await trio.sleep(5.0)
            assert not exchange.is_over, "it goes on trying, with its own as before"
            nursery.cancel_scope.cancel()
