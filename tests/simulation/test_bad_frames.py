"""One member of four sends values that mean nothing, rightly signed and hashed: who sums leaves it out by name, who takes its results
refuses them, and rounds go on for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
import structlog
import torch
import trio
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import Snapshot
from averaging.rounds.exchange import exchange_driver as exchanging
from averaging.rounds.exchange.chunk_means import Counted
from averaging.rounds.exchange.exchange import Exchange
from averaging.rounds.exchange.reduction import Reduction, SliceResult, _Sum, _Written
from averaging.rounds.traffic.contribution import DeltaEncoder
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.merkle import leaf_hash
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.messages.record import CommitRecord, OmissionCode
from tests.simulation import virtual_time
from tests.simulation.node import Node, WatchedChain
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.swarm import RUN_ID, World

SEED: Final = 5
NUM_PEERS: Final = 4
NO_VALUE: Final = np.float32("nan").tobytes()
"""At the beginning of a chunk: no value, no scale, no level of a codebook."""

Spoil = Callable[[Node], AbstractContextManager[None]]


class _Spoilt(DeltaEncoder):
    """Its chunks mean nothing, and what is signed are the hashes of these very bytes."""

    def encode(self, run: range) -> None:
        super().encode(run)
        room, size_bytes = self._fed._room if self._fed is not None else self._room, len(self.chunks[0])
        for chunk in run:
            room[chunk * size_bytes :][: len(NO_VALUE)] = NO_VALUE
            self._hashes[chunk] = leaf_hash(self.chunks[chunk])


@contextmanager
def _contributing(bad: Node) -> Iterator[None]:
    real = exchanging._encoder

    def encoder(chain: WatchedChain, anchor_N: torch.Tensor, snapshot: Snapshot) -> DeltaEncoder:
        if chain.node is not bad:
            return real(chain, anchor_N, snapshot)
        tools = chain.tools
        feedback = None if tools.feedback is None else tools.feedback.state
        return _Spoilt(anchor_N, snapshot.theta_N, snapshot.tokens, tools.codec, tools.grid, feedback)

    with replaced(exchanging, _encoder=encoder):
        yield


@contextmanager
def _reducing(bad: Node) -> Iterator[None]:
    """It signs the hashes of these very bytes."""
    real = Reduction._summed

    def summed(self: Reduction, chunks: Sequence[int], counted: Counted, written: _Written) -> dict[int, _Sum]:
        sums = real(self, chunks, counted, written)
        if self.part.reducer != bad.peer:
            return sums
        begin = self._place(self.part.first_chunk, self.part.stop_chunk).start
        for chunk in chunks:
            at = self._place(chunk, chunk + 1).start - begin
            written.room[at : at + len(NO_VALUE)] = NO_VALUE
        return {chunk: replace(each, leaf=leaf_hash(each.encoded)) for chunk, each in sums.items()}

    with replaced(Reduction, _summed=summed):
        yield


@dataclass(frozen=True)
class Played:
    """Two rounds: who was bad, and of each the record and how long it took."""

    bad: PeerId
    records: tuple[CommitRecord, ...]
    took_s: tuple[float, ...]


async def _rounds(codec: str, result_codec: str, spoil: Spoil, leads: bool) -> Played:
    """With `leads` the bad one owns the first attempt."""
    profile = Profile("bad frames", round_s=10.0, longest_interval_s=60.0, codec=codec, result_codec=result_codec)
    records, at_s = list[CommitRecord](), [0.0]
    async with trio.open_nursery() as nursery:
        world = World(SEED, nursery, NUM_PEERS, NUM_PEERS, profile)
        roster = tuple(sorted(node.peer for node in world.nodes))
        first = first_opener(RUN_ID, world.layout.spine, 0, roster)
        bad = next(node for node in world.nodes if (node.peer == first) is leads)
        with spoil(bad):
            for node in world.nodes:
                world.boot(node)
            for index in (1, 2):
                is_committed = partial(lambda index: min(node.index for node in world.nodes) >= index, index)
                await world.wait_for(is_committed, 120.0, f"round {index}")
                known = [each for each in world.observed.commits.values() if each.index == index]
                assert len(known) == 1, "all stand on one commit"
                records.append(known[0].record)
                at_s.append(trio.current_time())
        nursery.cancel_scope.cancel()
    took_s = tuple(after - before for before, after in pairwise(at_s))
    return Played(bad.peer, tuple(records), took_s)


def _play(codec: str, spoil: Spoil, *, result_codec: str = "", leads: bool = False) -> Played:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    try:
        return virtual_time.run(SEED, partial(_rounds, codec, result_codec, spoil, leads))
    finally:
        structlog.configure(**before)


CODECS = pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "int4", "e3m0", "topk"])


@CODECS
def test_whose_contribution_means_nothing_is_left_out_by_name_and_the_others_commit(codec: str) -> None:
    played = _play(codec, _contributing)
    for record in played.records:
        for part in record.slices:
            ((peer, code),) = [(left_out.peer, left_out.code) for left_out in part.omitted]
            assert peer == played.bad
            assert code == OmissionCode.REFUSED
        assert len(record.contributors) == NUM_PEERS - 1
        assert record.ballot.attempt == 0


@pytest.mark.parametrize(
    ("codec", "result_codec"),
    [*((name, "") for name in ("fp32", "fp16", "int8", "int4", "e3m0")), *(("topk", f"top{n}") for n in (6, 12, 25))],
)
def test_a_reducer_whose_result_means_nothing_is_named_and_loses_its_slice_within_the_round(
    codec: str, result_codec: str
) -> None:
    """One such reducer ended every attempt: each was settled with its result, which nobody could ack but it itself, and what it had
    acked was settled again.
    """
    with capture_logs() as logs:
        played = _play(codec, _reducing, result_codec=result_codec)
    for record in played.records:
        assert played.bad not in {part.reducer for part in record.slices}
        assert len(record.contributors) == NUM_PEERS, "what it contributes is good"
    assert max(played.took_s) < 20.0
    refused = [line for line in logs if line["event"] == "exchange_refused"]
    assert {line["reducer"] for line in refused} == {peer_name(played.bad)}
    assert all((result_codec or codec) in line["reason"] for line in refused)
    assert len(refused) <= 2 * 2 * NUM_PEERS, "its bytes are not asked for again and again"


def test_a_leader_that_finds_that_its_own_result_means_nothing_gives_its_slice_to_another() -> None:
    played = _play("int8", _reducing, leads=True)
    for record in played.records:
        assert played.bad not in {part.reducer for part in record.slices}
    assert max(played.took_s) < 20.0


@contextmanager
def _standing_by_it(bad: Node) -> Iterator[None]:
    """As `_reducing`, and it takes its own bytes for good ones: it settles them and acks."""
    real = Exchange._examine_own

    async def examine_own(self: Exchange, result: SliceResult) -> None:
        if self._tools.me.peer != bad.peer:
            await real(self, result)

    with _reducing(bad), replaced(Exchange, _examine_own=examine_own):
        yield


def test_a_leader_that_settles_its_own_result_which_means_nothing_is_followed_by_another() -> None:
    played = _play("int8", _standing_by_it, leads=True)
    first, _ = played.records
    assert first.ballot.attempt > 0
    assert first.ballot.peer != played.bad
    for record in played.records:
        assert played.bad not in {part.reducer for part in record.slices}
