"""Stages of a model: every tensor in one of them, and maps that are none."""

from __future__ import annotations

import pytest

from averaging.models.llama.config import LlamaConfig
from protocol.errors import ConfigError, LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap, stage_of, stage_schema, stage_unit
from tests.at_once import stage_units

MODEL = LlamaConfig(
    vocab_size=17, dim=8, num_layers=5, num_heads=2, num_kv_heads=1, ffn_dim=12, context_tokens=16, is_tied=False
)


def test_stages_one_after_another_are_the_whole_model_in_its_own_order() -> None:
    units = stage_units(StageMap(MODEL, (2, 1, 2)))
    assert [schema.unit for schema in units.schemas] == ["stage-0", "stage-1", "stage-2"]
    assert units.whole.tensors == model_schema(MODEL).tensors
    assert units.whole.fingerprint() == model_schema(MODEL).fingerprint()


def test_the_first_stage_carries_the_embedding_and_the_last_one_norm_and_head() -> None:
    stages = StageMap(MODEL, (2, 1, 2))
    assert stage_schema(stages, 0).tensors[0].name == "embed.weight"
    assert {spec.name.split(".")[1] for spec in stage_schema(stages, 1).tensors} == {"2"}
    assert [spec.name for spec in stage_schema(stages, 2).tensors[-2:]] == ["norm.weight", "head.weight"]


def test_an_embedding_or_a_head_may_be_a_stage_of_its_own() -> None:
    stages = StageMap(MODEL, (0, 5, 0))
    assert [spec.name for spec in stage_schema(stages, 0).tensors] == ["embed.weight"]
    assert [spec.name for spec in stage_schema(stages, 2).tensors] == ["norm.weight", "head.weight"]


def test_one_stage_is_the_whole_model_even_where_the_head_is_the_embedding() -> None:
    tied = MODEL.model_copy(update={"is_tied": True})
    assert stage_schema(StageMap(tied, (5,)), 0).tensors == model_schema(tied).tensors


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((2, 2), r"stages of \[2, 2\] layers, 4 together; expected the model's 5"),
        ((3, 3), r"6 together; expected the model's 5"),
        ((3, 0, 2), "stage 1 of .* with 0 layers; expected at least 1"),
        ((6, -1), "stage 1 of .* with -1 layers; expected at least 0"),
        ((), "0 stages; expected 1 to 64"),
        ((1,) * 65, "65 stages; expected 1 to 64"),
    ],
)
def test_a_map_that_does_not_cover_the_model_is_refused_in_one_line(layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        StageMap(MODEL, layers)
    assert "\n" not in str(refused.value)


def test_a_head_that_is_the_embedding_cannot_be_in_two_stages() -> None:
    with pytest.raises(ConfigError, match="set is_tied = false"):
        StageMap(MODEL.model_copy(update={"is_tied": True}), (3, 2))


def test_units_and_numbers_of_stages_go_there_and_back() -> None:
    stages = StageMap(MODEL, (2, 1, 2))
    assert [stage_of(stage_unit(stage), stages) for stage in range(3)] == [0, 1, 2]
    assert [stages.span(stage) for stage in range(3)] == [(0, 2), (2, 3), (3, 5)]


@pytest.mark.parametrize("name", ["stage-3", "stage-", "stage-01", "stage--1", "stage-²", "trunk", ""])
def test_a_unit_that_the_run_has_not_is_refused_with_those_that_it_has(name: str) -> None:
    with pytest.raises(ConfigError, match="stage-0 to stage-2"):
        stage_of(UnitName(name), StageMap(MODEL, (2, 1, 2)))


def test_a_stage_that_is_none_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="stage 3; expected 0 to 2"):
        stage_schema(StageMap(MODEL, (2, 1, 2)), 3)
