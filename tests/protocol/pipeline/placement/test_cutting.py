"""Cuts are the best there are, below what the peers have room for; what cannot be is said in one line."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from averaging.models.llama.config import LlamaConfig
from protocol.errors import ConfigError, MachineError
from protocol.pipeline.placement.cutting import (
    StageCosts,
    StageMemory,
    computed_costs,
    cut,
    planned_memory,
    stages_that_fit,
)
from protocol.tensors.stage_schema import StageMap
from tests.at_once import stage_units

MODEL = LlamaConfig(
    vocab_size=16, dim=8, num_layers=6, num_heads=2, num_kv_heads=1, ffn_dim=12, context_tokens=16, is_tied=False
)
EVEN = StageCosts(0.0, 1.0, 0.0)
LIGHT = StageMemory(0, 0, 1, 0)


def _slowest(stages: StageMap, costs: StageCosts) -> float:
    return max(costs.of(stages, stage) for stage in range(stages.num_stages))


def _best_of_all(costs: StageCosts, memory: StageMemory, rooms: list[int]) -> float | None:
    """The slowest stage of the best cut, found by trying every cut with every order of the peers."""
    slowest = []
    for layers in product(range(MODEL.num_layers + 1), repeat=len(rooms)):
        try:
            stages = StageMap(MODEL, layers)
        except ConfigError:
            continue
        needs = [memory.of(stages, stage) for stage in range(stages.num_stages)]
        if any(all(need <= room for need, room in zip(needs, order, strict=True)) for order in permutations(rooms)):
            slowest.append(_slowest(stages, costs))
    return min(slowest, default=None)


@pytest.mark.parametrize("seed", range(30))
def test_a_cut_is_as_good_as_the_best_of_all_and_there_is_one_where_any_is(seed: int) -> None:
    draw = random.Random(seed)
    costs = StageCosts(draw.choice([0.0, 0.3]), draw.choice([0.1, 0.7, 1.0]), draw.choice([0.0, 0.9, 2.5]))
    memory = StageMemory(1, draw.randrange(4), 2, draw.randrange(5))
    rooms = [draw.randrange(2, 11) for _ in range(draw.choice([1, 2, 3, 4]))]
    best = _best_of_all(costs, memory, rooms)
    if best is None:
        with pytest.raises(ConfigError, match="expect more or larger peers"):
            cut(MODEL, costs, memory, rooms, num_stages=len(rooms), replicas=1)
    else:
        stages = cut(MODEL, costs, memory, rooms, num_stages=len(rooms), replicas=1)
        assert _slowest(stages, costs) == best


def test_a_heavy_head_leaves_the_last_stage_fewer_layers() -> None:
    assert cut(MODEL, StageCosts(0.0, 1.0, 2.0), LIGHT, [9] * 3, num_stages=3, replicas=1).layers == (3, 3, 0)
    assert cut(MODEL, EVEN, LIGHT, [9] * 3, num_stages=3, replicas=1).layers == (2, 2, 2)


def test_without_a_number_there_are_as_few_stages_as_the_peers_have_room_for() -> None:
    assert cut(MODEL, EVEN, LIGHT, [6, 6], replicas=2).num_stages == 1
    assert cut(MODEL, EVEN, LIGHT, [3] * 4, replicas=2).layers == (3, 3)
    assert cut(MODEL, EVEN, LIGHT, [2] * 6, replicas=2).layers == (2, 2, 2)


def test_each_stage_has_room_at_as_many_peers_as_it_is_to_have_replicas() -> None:
    assert sorted(cut(MODEL, EVEN, LIGHT, [5, 4, 2, 2], num_stages=2, replicas=2).layers) == [2, 4]
    with pytest.raises(ConfigError, match=r"4 peers .* 2 stages of 2 replicas"):
        cut(MODEL, EVEN, LIGHT, [5, 3, 2, 2], num_stages=2, replicas=2)


def test_fewer_peers_than_stages_are_refused() -> None:
    with pytest.raises(ConfigError, match="expect more or larger peers"):
        cut(MODEL, EVEN, LIGHT, [100], num_stages=2, replicas=1)
    with pytest.raises(ConfigError, match="0 peers and 2 replicas"):
        cut(MODEL, EVEN, LIGHT, [])


def test_a_peer_too_small_for_any_stage_is_told_so_in_one_line() -> None:
    stages = StageMap(MODEL, (1, 3, 2))
    memory = StageMemory(0, 5 * 10**9, 10**9, 5 * 10**9)
    assert stages_that_fit(stages, memory, 6 * 10**9) == (0, 1)
    assert stages_that_fit(stages, memory, 3 * 10**9) == (1,)
    with pytest.raises(MachineError, match=r"2.00 GB .* smallest stage, stage-1, takes 3.00 GB") as refused:
        stages_that_fit(stages, memory, 2 * 10**9)
    assert "\n" not in str(refused.value)


def test_planned_memory_counts_each_parameter_once() -> None:
    memory = planned_memory(MODEL, micro_batch_tokens=0, in_flight=1, base_bytes=0)
    stages = StageMap(MODEL, (2, 2, 2))
    planned = [memory.of(stages, stage) for stage in range(3)]
    assert planned == [40 * schema.num_elements for schema in stage_units(stages).schemas]


def test_recomputing_stages_keep_less_and_more_micro_batches_in_flight_more() -> None:
    kept = planned_memory(MODEL, micro_batch_tokens=64, in_flight=4)
    again = planned_memory(MODEL, micro_batch_tokens=64, in_flight=4, recomputes=True)
    more = planned_memory(MODEL, micro_batch_tokens=64, in_flight=8)
    assert again.layer < kept.layer < more.layer
    assert kept.base == again.base < more.base


def test_costs_count_each_weight_once_forward_and_twice_backward() -> None:
    costs = computed_costs(MODEL)
    assert costs.head == 3 * MODEL.dim * MODEL.vocab_size
    assert costs.layer > 3 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 12)


def test_a_layer_that_takes_no_time_is_no_measurement() -> None:
    with pytest.raises(ConfigError, match="a layer that takes time"):
        StageCosts(0.0, 0.0, 1.0)
