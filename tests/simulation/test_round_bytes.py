"""The payload of a whole round at a peer, both lanes counted, compared with its codec's size of the vector."""

from __future__ import annotations

from functools import cache, partial
from typing import Final

import pytest
import structlog
import trio

from averaging.codecs import codec_by_name
from averaging.rounds.lineage.retention import update_bytes
from protocol.run.traffic import round_bytes
from tests.simulation import swarm as worlds
from tests.simulation import trainer, virtual_time
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.swarm import World

SEED: Final = 5
NUM_ELEMENTS: Final = 1 << 20
CHUNK_ELEMENTS: Final = 16_384
MOST: Final = 1.05
"""Of 2 (N - 1) / N encoded vectors each way: greetings, hashes, results' words, heartbeats, proposals and acks are in it."""

WITHOUT_SIGNATURES_BYTES: Final = 1_605_800
"""The same of each of four members with int8, in a tree whose records carry no signatures of those whom they count: commit c317c070,
by `_moved` with seeds 1 to 5, two rounds each. Lower than each of these.
"""

MOST_FOR_SIGNATURES: Final = 1.03
MOST_FOR_SIGNATURES_OF_MANY: Final = 1.001
MANY_ELEMENTS: Final = 25 << 20
"""Signatures in records may add so much to a round of NUM_ELEMENTS values, and of these. They depend on members and slices alone."""

BESIDE_BYTES: Final = 13_000
"""These, of each of four members, whatever the codec: 10 to 12 kB in twenty seconds."""


async def _moved(num_peers: int, codec: str) -> list[tuple[float, float]]:
    """Bytes up and down of each peer from one commit to the next, as parts of the bound."""
    profile = Profile(
        "calm",
        num_elements=NUM_ELEMENTS,
        round_s=20.0,
        longest_interval_s=120.0,
        list_every_s=60.0,
        codec=codec,
    )
    async with trio.open_nursery() as nursery:
        world = World(SEED, nursery, num_peers, num_peers, profile)
        for node in world.nodes:
            world.boot(node)
        spent = []
        for index in (1, 2):
            is_committed = partial(lambda index: min(node.index for node in world.nodes) >= index, index)
            await world.wait_for(is_committed, 120.0, f"round {index}")
            spent.append([node.traffic for node in world.nodes])
        encoded_bytes = update_bytes(codec_by_name(codec), world.grid)
        up_bytes, down_bytes = round_bytes(encoded_bytes, encoded_bytes, num_peers, reduces=True)
        nursery.cancel_scope.cancel()
    return [
        ((after.bytes_up - before.bytes_up) / up_bytes, (after.bytes_down - before.bytes_down) / down_bytes)
        for before, after in zip(*spent, strict=True)
    ]


@cache
def _play(num_peers: int, codec: str) -> list[tuple[float, float]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    # few directions: bytes are the same wherever a walk goes, and each is a whole vector
    with replaced(worlds, NUM_CHUNKS=NUM_ELEMENTS // CHUNK_ELEMENTS), replaced(trainer, MIN_DIRECTIONS=16):
        return virtual_time.run(SEED, partial(_moved, num_peers, codec))


def _encoded_bytes(codec: str, num_elements: int) -> int:
    return num_elements // CHUNK_ELEMENTS * codec_by_name(codec).encoded_bytes(CHUNK_ELEMENTS)


@pytest.mark.parametrize(
    ("num_peers", "codec"),
    [(4, "int8"), (16, "int8"), (4, "int4")],
)
def test_a_round_moves_no_more_than_a_twentieth_above_what_its_encoding_asks_for(num_peers: int, codec: str) -> None:
    for shares in zip(*_play(num_peers, codec), strict=True):
        assert 0.99 < sum(shares) / num_peers <= MOST


def test_signatures_in_records_cost_a_small_part_of_a_round_and_less_of_a_round_of_many_values() -> None:
    num_peers, codec = 4, "int8"
    bound_bytes, _ = round_bytes(*[_encoded_bytes(codec, NUM_ELEMENTS)] * 2, num_peers, reduces=True)
    many_bytes, _ = round_bytes(*[_encoded_bytes(codec, MANY_ELEMENTS)] * 2, num_peers, reduces=True)
    for shares in zip(*_play(num_peers, codec), strict=True):
        moved_bytes = sum(shares) / num_peers * bound_bytes
        added_bytes = moved_bytes - WITHOUT_SIGNATURES_BYTES
        assert 0.0 < added_bytes <= (MOST_FOR_SIGNATURES - 1.0) * WITHOUT_SIGNATURES_BYTES
        assert added_bytes <= (MOST_FOR_SIGNATURES_OF_MANY - 1.0) * many_bytes


def test_what_a_round_says_beside_its_encodings_is_as_much_with_a_sparse_codec_as_with_others() -> None:
    """A share of an encoding forty times smaller that is no twentieth any more."""
    num_peers, codec = 4, "topk"
    encoded_bytes = _encoded_bytes(codec, NUM_ELEMENTS)
    bound_bytes, _ = round_bytes(encoded_bytes, encoded_bytes, num_peers, reduces=True)
    for shares in zip(*_play(num_peers, codec), strict=True):
        assert 0.0 < (sum(shares) / num_peers - 1.0) * bound_bytes <= BESIDE_BYTES
