"""Units of an expert run: which tensors each has, and names that are none."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from averaging.models.llama.config import LlamaConfig
from protocol.errors import ConfigError, LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.expert_schema import (
    TRUNK,
    MixtureConfig,
    expert_of,
    expert_schema,
    expert_unit,
    held_units,
    trunk_schema,
)
from protocol.tensors.model_config import model_schema

DECODER = LlamaConfig(dim=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=8)
MIXTURE = MixtureConfig(num_experts=4, ffn_dim=12, top_k=2)


def test_the_trunk_is_the_decoder_and_an_expert_a_feed_forward_in_every_layer() -> None:
    assert trunk_schema(DECODER).tensors == model_schema(DECODER).tensors
    schema = expert_schema(DECODER, MIXTURE, 3)
    assert schema.unit == "expert-3"
    assert [spec.name for spec in schema.tensors][:3] == [
        f"layers.0.experts.3.{part}.weight" for part in ("w_gate", "w_up", "w_down")
    ]
    assert schema.num_elements == DECODER.num_layers * 3 * MIXTURE.ffn_dim * DECODER.dim


def test_a_peers_units_are_the_trunk_and_its_experts_in_the_order_of_their_numbers() -> None:
    units = held_units(DECODER, MIXTURE, [2, 0])
    assert [schema.unit for schema in units.schemas] == [TRUNK, "expert-0", "expert-2"]
    assert units.spans[-1][1] == sum(schema.num_elements for schema in units.schemas)


def test_units_and_numbers_of_experts_go_there_and_back() -> None:
    assert [expert_of(expert_unit(expert), MIXTURE) for expert in range(4)] == [0, 1, 2, 3]
    assert expert_of(TRUNK, MIXTURE) is None


@pytest.mark.parametrize(
    "name", ["expert-4", "expert-", "expert-01", "expert--1", "expert-x", "expert-²", "fragment-0", ""]
)
def test_a_unit_that_the_run_has_not_is_refused_with_those_that_it_has(name: str) -> None:
    with pytest.raises(ConfigError, match="trunk or expert-0 to expert-3"):
        expert_of(UnitName(name), MIXTURE)


def test_experts_out_of_range_or_held_twice_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="expert 4; expected 0 to 3"):
        expert_schema(DECODER, MIXTURE, 4)
    with pytest.raises(LocalProtocolError, match="each once"):
        held_units(DECODER, MIXTURE, [1, 1])


def test_more_experts_a_token_than_there_are_is_no_mixture() -> None:
    with pytest.raises(ValidationError, match="top_k 3 of 2 experts: expected at most 2"):
        MixtureConfig(num_experts=2, ffn_dim=8, top_k=3)
