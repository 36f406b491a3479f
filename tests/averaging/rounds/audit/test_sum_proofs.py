from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.rounds.audit.false_accusations import MOST_FALSE
from averaging.rounds.audit.sum_proofs import SumProofs
from averaging.rounds.lineage.round_context import AuditContext, RoundContext
from averaging.rounds.lineage.round_reports import RoundReport, SumConvicted
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, ask_all, read_request
from averaging.state.proof_files import ProofFiles
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.ids import PeerId
from protocol.rounds.audit.sum_proof import SumProof, encode_proof, notice_of
from protocol.rounds.events import Event, SumProven
from protocol.rounds.messages.messages import FalseSum
from protocol.rounds.messages.requests import FetchProof
from protocol.rounds.orders import FetchSumProof
from tests.averaging.rounds.audit.audit_world import SIX, Summed, summed, with_one_wrong
from tests.averaging.rounds.offers_world import UNIT
from tests.averaging.rounds.service_world import HandTrainer
from tests.virtual import InlineOffload, VirtualClock

WITNESS = PeerId("witness")


def _lie(world: Summed) -> SumProof:
    return world.proof_of_lie(with_one_wrong(world.chunks, world.check.means.result_codec))


class _Bench:
    """The proofs of one peer, beside a witness that shows `shown` to whoever asks."""

    def __init__(self, nursery: trio.Nursery, world: Summed, shown: bytes, disk: MemoryDisk) -> None:
        self.events: list[Event] = []
        self.published: list[RoundReport] = []
        self.asked: list[FetchProof] = []
        self._shown = shown
        swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 10_000_000.0))
        swarm.start(WITNESS).serve_streams(FETCH_CHANNEL, self._show)
        self.network = swarm.start(SIX[3].peer_id)
        tools = RoundContext(
            self.network,
            VirtualClock(),
            InlineOffload(),
            HandTrainer(),
            self._never,
            self.published.append,
            audits=AuditContext(proofs=ProofFiles(MemoryStorage(disk))),
        )
        self.proofs = SumProofs(world.check, tools, self._tell)
        self.network.serve_streams(FETCH_CHANNEL, self._serve)
        self.other = swarm.start(SIX[4].peer_id)

    async def _never(self, payload: bytes) -> bytes:
        raise AssertionError("nothing is signed here")

    async def _tell(self, event: Event) -> None:
        self.events.append(event)

    async def _show(self, peer: PeerId, stream: Stream) -> None:
        request = await read_request(stream)
        assert isinstance(request, FetchProof)
        self.asked.append(request)
        await stream.send_frame(self._shown)

    async def _serve(self, peer: PeerId, stream: Stream) -> None:
        request = await read_request(stream)
        assert isinstance(request, FetchProof)
        await self.proofs.serve(request, stream)

    async def accuse(self, notice: FalseSum) -> None:
        """The witness speaks of a proof, and the machine lets us ask for it."""
        await self.proofs.fetch(FetchSumProof(WITNESS, notice))


@asynccontextmanager
async def _bench(world: Summed, shown: bytes = b"", disk: MemoryDisk | None = None) -> AsyncIterator[_Bench]:
    async with trio.open_nursery() as nursery:
        yield _Bench(nursery, world, shown, disk or MemoryDisk())
        nursery.cancel_scope.cancel()


async def test_a_proof_of_another_is_checked_kept_shown_to_others_and_told_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    proof = _lie(world)
    data = encode_proof(proof)
    notice = notice_of(proof, data)
    async with _bench(world, data) as bench:
        await bench.accuse(notice)
        await bench.accuse(notice)
        assert len(bench.asked) == 1
        assert bench.events == [SumProven(notice, proof.words)]
        assert bench.published == [SumConvicted(notice, proof.words)]
        request = FetchProof(UNIT, notice.proof_hash)
        assert b"".join(await ask_all(bench.other, bench.network.peer_id, request, 2 * len(data))) == data
        unknown = FetchProof(UNIT, b"x" * 32)
        assert await ask_all(bench.other, bench.network.peer_id, unknown, 100, within_s=5.0) == []


async def test_the_next_process_finds_its_proofs_checks_them_again_and_tells_nobody_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world, disk = summed(), MemoryDisk()
    proof = _lie(world)
    files = ProofFiles(MemoryStorage(disk))
    for data in (encode_proof(proof), encode_proof(world.proof()), b"nonsense"):
        await files.write(data)
    async with _bench(world, disk=disk) as bench:
        await bench.proofs.load()
        notice = notice_of(proof, encode_proof(proof))
        assert bench.events == [SumProven(notice, proof.words, is_news=False)]


async def test_accusations_without_a_proof_convict_nobody_and_are_looked_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    lie, honest = _lie(world), world.proof()
    forged = replace(lie, seal=bytes(len(lie.seal)))
    of_lie = notice_of(lie, encode_proof(lie))
    for notice, shown in (
        (notice_of(honest, encode_proof(honest)), encode_proof(honest)),
        (notice_of(forged, encode_proof(forged)), encode_proof(forged)),
        (replace(of_lie, reducer=SIX[2].peer_id), encode_proof(lie)),
        (of_lie, b"nonsense"),
    ):
        async with _bench(world, shown) as bench:
            await bench.accuse(notice)
            await bench.accuse(notice)
            assert bench.events == []
            assert len(bench.asked) == 1


async def test_a_full_disk_keeps_nobody_from_acting_on_a_proof(autojump_clock: trio.testing.MockClock) -> None:
    world, disk = summed(), MemoryDisk(capacity_bytes=10)
    async with _bench(world, disk=disk) as bench:
        await bench.proofs.prove(_lie(world))
        assert [type(event) for event in bench.events] == [SumProven]


async def test_a_peer_that_accuses_falsely_a_few_times_is_not_listened_to_any_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    proof = _lie(world)
    notice = notice_of(proof, encode_proof(proof))
    async with _bench(world, b"nonsense") as bench:
        for number in range(MOST_FALSE + 2):
            await bench.accuse(replace(notice, proof_hash=bytes([number]) * 32))
        assert len(bench.asked) == MOST_FALSE
