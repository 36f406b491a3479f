"""The tensors of an adapter: two of each adapted matrix, by the names that a run's file gives."""

from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError
from protocol.tensors.adapter_schema import (
    ADAPTER,
    AdapterConfig,
    adapter_problem,
    adapter_schema,
    base_bytes,
    target_shapes,
)
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.model_families import FAMILIES, parse_model

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 24, "context_tokens": 16}
MODEL = parse_model(SMALL)


def test_each_adapted_matrix_has_two_tensors_of_the_rank() -> None:
    schema = adapter_schema(MODEL, AdapterConfig(rank=3, alpha=6.0, targets=("v_proj", "q_proj")))
    assert schema.unit == ADAPTER
    of_first = [(spec.name, spec.shape, spec.start) for spec in schema.tensors if spec.name.startswith("layers.0.")]
    assert of_first == [
        ("layers.0.wq.lora_A.weight", (3, 16), "fan_in"),
        ("layers.0.wq.lora_B.weight", (16, 3), "zeros"),
        ("layers.0.wv.lora_A.weight", (3, 16), "fan_in"),
        ("layers.0.wv.lora_B.weight", (8, 3), "zeros"),
    ]
    assert len(schema.tensors) == 2 * len(of_first)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_targets_all_matrices_of_the_layers_are_adapted(family: str) -> None:
    config = parse_model({"family": family, **SMALL})
    adapted = {
        spec.name.replace("lora_A.", "") for spec in adapter_schema(config, AdapterConfig(rank=1, alpha=1.0)).tensors
    }
    adapted = {name for name in adapted if ".lora_B." not in name}
    assert adapted == _matrices(config)


def _matrices(config: ModelConfig) -> set[str]:
    return {spec.name for spec in config.tensors() if len(spec.shape) == 2 and spec.name.startswith("layers.")}


def test_a_target_that_the_model_lacks_is_refused_with_those_that_it_has() -> None:
    expected = "expected matrices of family llama: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
    with pytest.raises(LocalProtocolError, match=expected):
        adapter_schema(MODEL, AdapterConfig(rank=1, alpha=1.0, targets=("lm_head",)))


@pytest.mark.parametrize(
    ("rank", "targets", "problem"),
    [
        (8, (), ""),
        (16, ("q_proj", "o_proj"), ""),
        (9, (), "adapter.rank 9 with k_proj of 8 x 16: expected at most 8"),
        (17, ("up_proj",), "adapter.rank 17 with up_proj of 24 x 16: expected at most 16"),
        (
            1,
            ("q_proj", "lm_head"),
            f'adapter.targets has "lm_head", which no layer of the model has: expected some of {", ".join(MODEL.linears)}',
        ),
        (1, ("q_proj", "q_proj"), "adapter.targets q_proj, q_proj: expected each once"),
    ],
)
def test_numbers_that_no_adapter_of_the_model_has_are_refused(
    rank: int, targets: tuple[str, ...], problem: str
) -> None:
    assert adapter_problem(MODEL, rank, targets) == problem


def test_the_shapes_of_targets_are_rows_and_columns() -> None:
    assert target_shapes(MODEL)["down_proj"] == (16, 24)


def test_the_output_is_scaled_by_alpha_over_rank() -> None:
    assert AdapterConfig(rank=8, alpha=16.0).scale == 2.0


def test_a_base_in_8_bits_takes_a_byte_a_value_of_its_matrices_and_a_factor_a_row() -> None:
    whole = sum(spec.num_elements for spec in MODEL.tensors())
    assert base_bytes(MODEL, AdapterConfig(rank=1, alpha=1.0)) == 2 * whole
    inside = sum(spec.num_elements for spec in MODEL.tensors() if spec.name in _matrices(MODEL))
    rows = sum(spec.shape[0] for spec in MODEL.tensors() if spec.name in _matrices(MODEL))
    narrow = base_bytes(MODEL, AdapterConfig(rank=1, alpha=1.0, base="int8"))
    assert narrow == 2 * (whole - inside) + inside + 4 * rows
