"""A host is told how even its cut is by what was measured, and a better one where there is any."""

from __future__ import annotations

import pytest

from averaging.models.llama.config import LlamaConfig
from protocol.errors import ConfigError
from protocol.pipeline.placement.cut_advice import Peers, advice_lines, best_cut, evenness
from protocol.pipeline.placement.cutting import StageCosts, StageMemory
from protocol.tensors.stage_schema import StageMap

MODEL = LlamaConfig(
    vocab_size=257, dim=16, num_layers=6, num_heads=2, num_kv_heads=2, ffn_dim=32, context_tokens=8, is_tied=False
)
EVEN = StageMap(MODEL, (2, 2, 2))
HEAVY_HEAD = StageCosts(0.0, 1e-6, 2e-6)
MEMORY = StageMemory(0, 1, 10, 1)


def test_a_head_that_was_measured_to_be_slow_leaves_its_stage_fewer_layers_and_what_to_write_is_said() -> None:
    best = best_cut(EVEN, HEAVY_HEAD, MEMORY, Peers())
    assert best.layers == (3, 3, 0)
    assert evenness(EVEN, HEAVY_HEAD) == pytest.approx(2 / 3)
    assert evenness(best, HEAVY_HEAD) == pytest.approx(8 / 9)
    *_, now, better, what_to_do = advice_lines(EVEN, HEAVY_HEAD, best)
    assert now == 'now:  layers = "2, 2, 2": 2, 2, 4; stages work 67% of the time at most'
    assert better == 'best: layers = "3, 3, 0": 3, 3, 2; stages work 89% of the time at most'
    assert what_to_do.startswith('in [pipeline] write layers = "3, 3, 0"')


def test_a_cut_that_no_other_is_better_than_stays() -> None:
    costs = StageCosts(0.0, 1e-6, 0.0)
    *_, last = advice_lines(EVEN, costs, best_cut(EVEN, costs, MEMORY, Peers()))
    assert last == "no cut into as many stages is more even"


def test_the_peers_that_are_expected_say_how_many_stages_there_are_and_which_has_room_where() -> None:
    costs = StageCosts(0.0, 1e-6, 0.0)
    assert best_cut(EVEN, costs, MEMORY, Peers((70, 70), replicas=2)).num_stages == 1
    assert best_cut(EVEN, costs, MEMORY, Peers((35, 35, 35, 35), replicas=2)).layers == (3, 3)
    assert "best:" in advice_lines(EVEN, costs, StageMap(MODEL, (3, 3)))[2]
    with pytest.raises(ConfigError, match="expect more or larger peers"):
        best_cut(EVEN, costs, MEMORY, Peers((5, 5, 5), replicas=1))
