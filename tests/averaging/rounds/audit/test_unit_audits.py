"""Whole services of a run in which one reducer sums falsely."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from averaging.rounds.exchange.reduction import Reduction
from averaging.rounds.lineage.round_reports import SumConvicted, SumNotShown
from averaging.state.proof_files import ProofFiles
from averaging.storage.memory_storage import MemoryStorage
from protocol.ids import PeerId
from protocol.merkle import leaf_hash
from protocol.rounds.audit.sum_proof import hash_of_proof
from protocol.rounds.schedule.sum_rules import SumRules
from tests.averaging.rounds.round_world import RoundWorld, open_world
from tests.averaging.rounds.service_world import PeerSession, live, of_kind, until

ALL = SumRules(audit_share=1.0)
"""With so few chunks this is about one audit of each member and round."""

Lie = Callable[[PeerId], bool]


def _with_false_sums(monkeypatch: pytest.MonkeyPatch, lies: Lie) -> None:
    """These reducers return zeros for each chunk that they sum, and sign them."""
    real = Reduction._summed

    def summed(self: Reduction, chunks: Sequence[int], counted: Any, written: Any) -> Any:
        sums = real(self, chunks, counted, written)
        if not lies(self.part.reducer):
            return sums
        begin = self._place(self.part.first_chunk, self.part.stop_chunk).start
        for chunk in chunks:
            place = self._place(chunk, chunk + 1)
            written.room[place.start - begin : place.stop - begin] = bytes(place.stop - place.start)
        return {chunk: replace(each, leaf=leaf_hash(each.encoded)) for chunk, each in sums.items()}

    monkeypatch.setattr(Reduction, "_summed", summed)


@asynccontextmanager
async def _run(sums: SumRules, num_peers: int = 4) -> AsyncIterator[tuple[RoundWorld, list[PeerSession]]]:
    async with open_world(num_peers) as world, trio.open_nursery() as nursery:
        yield world, [await live(world, nursery, party, sums=sums) for party in world.parties]
        nursery.cancel_scope.cancel()


async def test_a_reducer_that_signs_false_sums_is_out_everywhere_and_the_others_go_on(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    liars = set[PeerId]()
    _with_false_sums(monkeypatch, liars.__contains__)
    async with _run(ALL) as (_, lives):
        liar, honest = lives[2], [life for life in lives if life is not lives[2]]
        liars.add(liar.party.peer)
        await until(lambda: all(liar.party.peer in life.service.state.barred.expelled for life in honest), 600.0)
        index = max(life.index for life in honest)
        await until(lambda: all(life.index > index + 2 for life in honest), 600.0)
        assert len({life.service.state.link.commit for life in honest}) <= 2
        for life in honest:
            (report,) = of_kind(SumConvicted, life.reported)
            assert report.notice.reducer == liar.party.peer
            assert "signed a false sum of chunk" in report.words
            files = ProofFiles(MemoryStorage(life.party.disk))
            kept = [hash_of_proof(data) for data in await files.load()]
            assert report.notice.proof_hash in kept, "each of them can show it to others"
            newest = life.service.chain.head.record
            assert newest is not None
            assert newest.contributor(liar.party.peer) is None, "and nothing of the liar counts"


async def test_where_nobody_lies_audits_find_nothing_and_nobody_is_accused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _run(ALL) as (_, lives):
        await until(lambda: all(life.index >= 8 for life in lives), 600.0)
        for life in lives:
            assert life.service.state.barred.expelled == frozenset()
            assert of_kind(SumConvicted, life.reported) == []
            assert of_kind(SumNotShown, life.reported) == []


async def test_a_peer_that_starts_again_knows_the_liar_from_its_own_disk(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    liars = set[PeerId]()
    _with_false_sums(monkeypatch, liars.__contains__)
    async with open_world(3) as world, trio.open_nursery() as nursery:
        lives = [await live(world, nursery, party, sums=ALL) for party in world.parties]
        liar, honest = lives[1].party.peer, lives[0]
        liars.add(liar)
        await until(lambda: liar in honest.service.state.barred.expelled, 600.0)
        for life in lives:
            life.scope.cancel()
        honest.party.boot()
        again = await live(world, nursery, honest.party, sums=ALL)
        await until(lambda: liar in again.service.state.barred.expelled, 5.0)
        nursery.cancel_scope.cancel()
