"""Rounds with a member that sends wrong deltas, on the production services: the others' mean is what everybody applies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pytest
import structlog
import torch
import trio

from averaging.network.seams.interfaces import Snapshot
from averaging.rounds.exchange import exchange_driver
from averaging.rounds.traffic.contribution import DeltaEncoder
from protocol.ids import PeerId
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.schedule.sum_rules import SumRules
from tests.simulation import virtual_time
from tests.simulation.node import WatchedChain
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.swarm import World

SEED: Final = 3
NUM_PEERS: Final = 5
NUM_ROUNDS: Final = 2
LONG_RUN: Final = 12
NUM_ELEMENTS: Final = 8 * 512
STEP: Final = 1e-3
"""Size of a value of an honest delta."""


def _delta(number: int, index: int) -> torch.Tensor:
    """An honest delta, (N,) float32: half of its energy is what all have in common."""
    common, own = (
        torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed))
        for seed in (index, 1000 * (number + 1) + index)
    )
    return STEP * (common + own)


@contextmanager
def _deltas(factors: dict[int, float]) -> Iterator[None]:
    """All members send such deltas, some of them times a factor of their own."""
    real = exchange_driver._encoder

    def encoder(chain: WatchedChain, anchor_N: torch.Tensor, snapshot: Snapshot) -> DeltaEncoder:
        number = chain.node.number
        delta_N = factors.get(number, 1.0) * _delta(number, chain.head.index)
        return real(chain, anchor_N, replace(snapshot, theta_N=torch.sub(anchor_N, delta_N)))

    with replaced(exchange_driver, _encoder=encoder):
        yield


@dataclass(frozen=True)
class Played:
    """A few rounds: their records, how far each moved the anchor, and the peers by their number."""

    records: Sequence[CommitRecord]
    moved: Sequence[float]
    peers: Sequence[PeerId]


async def _rounds(profile: Profile, factors: dict[int, float], num_rounds: int) -> Played:
    moved = [0.0]
    async with trio.open_nursery() as nursery:
        world = World(SEED, nursery, NUM_PEERS, NUM_PEERS, profile)
        with _deltas(factors):
            for node in world.nodes:
                world.boot(node)
            for index in range(1, num_rounds + 1):
                is_committed = partial(lambda index: min(node.index for node in world.nodes) >= index, index)
                await world.wait_for(is_committed, 120.0, f"round {index}")
                chain = next(iter(world.nodes[0].services.values())).chain
                moved.append(float(chain.state.anchor_N.norm()))
        known = sorted(world.observed.commits.values(), key=lambda each: each.index)
        nursery.cancel_scope.cancel()
    return Played([each.record for each in known], moved[1:], [node.peer for node in world.nodes])


def _play(
    factors: dict[int, float],
    *,
    robust: str,
    codec: str = "int8",
    result_codec: str = "",
    num_rounds: int = NUM_ROUNDS,
) -> Played:
    profile = Profile(
        "wrong deltas",
        round_s=10.0,
        longest_interval_s=60.0,
        num_elements=NUM_ELEMENTS,
        codec=codec,
        result_codec=result_codec,
        sums=SumRules(robust=robust),
    )
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    try:
        return virtual_time.run(SEED, partial(_rounds, profile, factors, num_rounds))
    finally:
        structlog.configure(**before)


def test_whose_delta_is_turned_and_lengthened_moves_nothing_and_is_named_and_credited_with_nothing() -> None:
    played, honest = _play({2: -100.0}, robust="clip-agree"), _play({}, robust="clip-agree")
    liar = played.peers[2]
    for record in played.records:
        for part in record.slices:
            ((peer, num_chunks, percent),) = [(d.peer, d.num_chunks, d.agreement_percent) for d in part.disagreeing]
            assert (peer, num_chunks) == (liar, part.stop_chunk - part.first_chunk)
            assert -100 <= percent < -90
        credited = {entry.peer: (entry.credited_tokens, entry.tokens) for entry in record.contributors}
        assert credited.pop(liar)[0] == 0
        assert all(counted == tokens for counted, tokens in credited.values())
    assert played.moved == pytest.approx(honest.moved, rel=0.1)


def test_the_same_delta_carries_the_plain_mean_away() -> None:
    played, honest = _play({2: -100.0}, robust="off"), _play({}, robust="off")
    assert played.moved[0] > 10 * honest.moved[0]
    assert not any(part.disagreeing for record in played.records for part in record.slices)


def test_a_run_with_such_a_member_comes_to_its_tokens_by_the_work_of_the_others_and_names_it_in_each_round() -> None:
    played = _play({2: -100.0}, robust="clip-agree", num_rounds=LONG_RUN)
    liar = played.peers[2]
    assert [record.index for record in played.records][:LONG_RUN] == list(range(1, LONG_RUN + 1))
    for record in played.records:
        assert {each.peer for part in record.slices for each in part.disagreeing} == {liar}
    honest = sum(entry.tokens for record in played.records for entry in record.contributors if entry.peer != liar)
    assert played.records[-1].total_tokens == honest
