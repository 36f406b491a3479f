from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.rounds.audit.sum_check import SumCheck
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, read_request
from coordinator.audits.sum_judge import judge
from coordinator.ledger.accused_reducers import AccusedReducers
from protocol.ids import PeerId, UnitName
from protocol.rounds.audit.sum_proof import encode_proof, hash_of_proof, notice_of
from protocol.rounds.messages.messages import FalseSum
from protocol.rounds.messages.requests import FetchProof
from tests.averaging.rounds.audit.audit_world import REDUCER, SIX, summed, with_one_wrong
from tests.averaging.rounds.offers_world import UNIT
from tests.virtual import InlineOffload

HOST, WITNESS = PeerId("host"), SIX[1].peer_id


@dataclass
class _Bans:
    """Bans as they are made."""

    sums: AccusedReducers = field(default_factory=AccusedReducers)
    made: list[tuple[PeerId, str]] = field(default_factory=list)

    async def ban_reducer(self, reducer: PeerId, words: str) -> None:
        self.made.append((reducer, words))


@asynccontextmanager
async def _judging(check: SumCheck, shown: bytes) -> AsyncIterator[tuple[_Bans, list[FetchProof]]]:
    """A host that judges, and a member that shows these bytes to whoever asks for a proof."""
    bans, asked = _Bans(), list[FetchProof]()

    async def serve(peer: PeerId, stream: Stream) -> None:
        request = await read_request(stream)
        assert isinstance(request, FetchProof)
        asked.append(request)
        if shown:
            await stream.send_frame(shown)

    async def reach(peers: Sequence[PeerId]) -> None:
        assert peers == [WITNESS]

    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 10_000_000.0))
        swarm.start(WITNESS).serve_streams(FETCH_CHANNEL, serve)
        nursery.start_soon(judge, {UNIT: check}, bans, swarm.start(HOST), InlineOffload(), reach)
        yield bans, asked
        nursery.cancel_scope.cancel()


async def test_a_proof_that_a_member_shows_bans_the_reducer_in_words(autojump_clock: trio.testing.MockClock) -> None:
    world = summed()
    proof = world.proof_of_lie(with_one_wrong(world.chunks, world.check.means.result_codec))
    data = encode_proof(proof)
    async with _judging(world.check, data) as (bans, _):
        bans.sums.heard(WITNESS, [notice_of(proof, data)])
        await trio.sleep(5.0)
    assert bans.made == [(REDUCER.peer_id, proof.words)]


async def test_an_accusation_without_a_proof_bans_nobody_and_is_looked_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    lie = world.proof_of_lie(with_one_wrong(world.chunks, world.check.means.result_codec))
    honest = world.proof()
    forged = replace(lie, seal=bytes(len(lie.seal)))
    other_name = replace(notice_of(lie, encode_proof(lie)), reducer=SIX[2].peer_id)
    cases: list[tuple[FalseSum, bytes]] = [
        (notice_of(honest, encode_proof(honest)), encode_proof(honest)),
        (notice_of(forged, encode_proof(forged)), encode_proof(forged)),
        (other_name, encode_proof(lie)),
        (replace(other_name, proof_hash=hash_of_proof(b"nonsense")), b"nonsense"),
        (notice_of(lie, encode_proof(lie)), b""),
    ]
    for notice, shown in cases:
        async with _judging(world.check, shown) as (bans, asked):
            for _ in range(2):
                bans.sums.heard(WITNESS, [notice])
                await trio.sleep(5.0)
        assert bans.made == []
        assert len(asked) == 1


async def test_an_accusation_of_an_unknown_unit_holds_up_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    proof = world.proof_of_lie(with_one_wrong(world.chunks, world.check.means.result_codec))
    data = encode_proof(proof)
    notice = notice_of(proof, data)
    async with _judging(world.check, data) as (bans, _):
        bans.sums.heard(WITNESS, [replace(notice, unit=UnitName("other"), proof_hash=b"o" * 32)])
        bans.sums.heard(WITNESS, [notice])
        await trio.sleep(60.0)
    assert bans.made == [(REDUCER.peer_id, proof.words)]
