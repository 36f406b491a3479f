from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed
from averaging.network.seams.interfaces import Snapshot, Stream
from averaging.rounds.exchange.carrier import CARRY_CHANNEL
from averaging.rounds.exchange.exchange_driver import WAIT_FOR_PROPOSAL_S
from averaging.rounds.parting import PARTING_S
from averaging.rounds.unit_service import LEAVE_WITHIN_S
from protocol.errors import TransportError
from protocol.ids import PeerId
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.requests import CarryHello
from protocol.rounds.messages.wire import encode_body
from protocol.rounds.participants import carriers
from protocol.rounds.schedule.proposal import consumed_tokens
from tests.averaging.rounds.round_world import RoundWorld, open_world
from tests.averaging.rounds.service_world import AwayTrainer, PeerSession, StepTrainer, live, until

Clock = trio.testing.MockClock


class HangingTrainer(StepTrainer):
    """Trains, and gives one snapshot. It never comes to the end of a step after that."""

    has_given = False

    async def snapshot(self) -> Snapshot:
        while self.has_given:
            await trio.sleep(3600.0)
        self.has_given = True
        return await super().snapshot()


@asynccontextmanager
async def _before_a_round(
    trainers: Mapping[int, StepTrainer] | None = None, num_peers: int = 3
) -> AsyncIterator[tuple[RoundWorld, list[PeerSession], StepTrainer]]:
    """Peers that have trained for a second since the first commit, which takes about three; the last one is to leave."""
    trainers = {num_peers - 1: StepTrainer("leaver"), **(trainers or {})}
    async with open_world(num_peers) as world, trio.open_nursery() as nursery:
        lives = [await live(world, nursery, p, trainers.get(n)) for n, p in enumerate(world.parties)]
        await until(lambda: min(life.index for life in lives) >= 1)
        await trio.sleep(1.0)
        yield world, lives, trainers[num_peers - 1]
        nursery.cancel_scope.cancel()


async def _leave(world: RoundWorld, life: PeerSession, within_s: float = PARTING_S) -> float:
    began_s = trio.current_time()
    await life.rounds.leave(within_s)
    life.scope.cancel()
    world.swarm.kill(life.party.peer)
    return trio.current_time() - began_s


async def _counted(lives: list[PeerSession], peer: PeerId) -> int:
    """Tokens of a peer that the next commit of these takes out of its work."""
    index = max(life.index for life in lives)
    await until(lambda: min(life.index for life in lives) > index)
    records = {link.record for life in lives for link in life.service.chain.links if link.index == index + 1}
    (record,) = records
    assert isinstance(record, CommitRecord)
    return consumed_tokens(record, peer)


async def test_a_peer_that_leaves_before_a_round_is_counted_in_it_with_all_that_it_had_trained(
    autojump_clock: Clock,
) -> None:
    async with _before_a_round() as (world, lives, trainer):
        ready = trainer.progress().tokens_ready
        assert ready > 0
        assert await _leave(world, lives[2]) < 2.0
        assert await _counted(lives[:2], world.parties[2].peer) >= ready
        assert world.parties[2].peer not in lives[0].service.chain.head.roster


async def test_a_peer_that_leaves_in_an_exchange_stays_for_its_commit_and_hands_over_the_rest(
    autojump_clock: Clock,
) -> None:
    async with _before_a_round() as (world, lives, trainer):
        service, me = lives[2].service, world.parties[2].peer
        await until(lambda: service.state.open.contribution is not None)
        index, ready = service.chain.head.index, trainer.progress().tokens_ready
        assert await _leave(world, lives[2]) < PARTING_S
        await until(lambda: min(life.index for life in lives[:2]) >= index + 2)
        records = [link.record for link in lives[0].service.chain.links if link.index > index]
        counted = [consumed_tokens(record, me) for record in records if record is not None]
        assert counted[0] > 0
        assert sum(counted) >= ready, "the commit of the exchange, and the one after it"


async def test_all_leavers_but_one_are_counted_in_the_last_ones_round(autojump_clock: Clock) -> None:
    async with _before_a_round(num_peers=4) as (world, lives, _):
        async with trio.open_nursery() as nursery:
            for life in lives[2:]:
                nursery.start_soon(_leave, world, life)
        index = lives[0].index
        await until(lambda: min(life.index for life in lives[:2]) > index)
        record = lives[0].service.chain.links[index + 1].record
        assert record is not None
        assert {entry.peer for entry in record.contributors} == {party.peer for party in world.parties}


async def test_who_gives_no_time_leaves_at_once_and_its_work_is_lost(autojump_clock: Clock) -> None:
    async with _before_a_round() as (world, lives, _):
        assert await _leave(world, lives[2], 0.0) < 0.5
        assert await _counted(lives[:2], world.parties[2].peer) == 0


@pytest.mark.parametrize("trouble", ["the trainer is away", "the trainer hangs", "its line is thin", "nobody answers"])
async def test_whatever_holds_it_up_a_peer_leaves_within_its_limit(trouble: str, autojump_clock: Clock) -> None:
    trainers = {"the trainer is away": AwayTrainer("away"), "the trainer hangs": HangingTrainer("hangs")}
    trainer = trainers.get(trouble, StepTrainer("leaver"))
    async with _before_a_round({2: trainer}) as (world, lives, _):
        if trouble == "its line is thin":
            world.swarm.speeds[world.parties[2].peer] = LinkSpeed(0.05, 100.0)
        if trouble == "nobody answers":
            world.swarm.freeze(world.parties[0].peer)
            world.swarm.freeze(world.parties[1].peer)
        assert await _leave(world, lives[2]) <= PARTING_S + LEAVE_WITHIN_S + 0.1


async def test_if_one_peer_refuses_another_is_asked(autojump_clock: Clock) -> None:
    asked: list[PeerId] = []

    async def refuse(sender: PeerId, stream: Stream) -> None:
        asked.append(sender)
        raise TransportError("no room", "another peer")

    async with _before_a_round(num_peers=4) as (world, lives, trainer):
        first = _first_carrier(lives)
        first.party.network.serve_streams(CARRY_CHANNEL, refuse)
        ready = trainer.progress().tokens_ready
        await _leave(world, lives[3])
        assert asked == [world.parties[3].peer]
        assert await _counted(lives[:3], world.parties[3].peer) >= ready


def _first_carrier(lives: list[PeerSession]) -> PeerSession:
    (first, *_) = carriers(lives[-1].service.state, trio.current_time())
    return next(life for life in lives if life.party.peer == first.peer)


async def test_a_carrier_that_dies_costs_the_others_nothing_but_that_work(autojump_clock: Clock) -> None:
    async with _before_a_round(num_peers=4) as (world, lives, _):
        first = _first_carrier(lives)
        await _leave(world, lives[3])
        first.scope.cancel()
        world.swarm.kill(first.party.peer)
        others = [life for life in lives[:3] if life is not first]
        began_s = trio.current_time()
        assert await _counted(others, world.parties[3].peer) == 0
        assert trio.current_time() - began_s < 20.0


async def test_a_contribution_on_another_commit_than_the_head_is_refused(autojump_clock: Clock) -> None:
    async with _before_a_round() as (world, lives, _):
        stale, began_s = lives[0].service.chain.links[0].commit, trio.current_time()
        stream = await world.parties[2].network.open_stream(world.parties[0].peer, CARRY_CHANNEL, timeout_s=1.0)
        await stream.send_frame(encode_body(CarryHello(lives[0].service.unit, stale, b"")))
        with pytest.raises(TransportError):
            await stream.receive_frame()
        assert trio.current_time() - began_s <= WAIT_FOR_PROPOSAL_S + 0.1
