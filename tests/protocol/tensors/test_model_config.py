from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from averaging.models.llama.config import LlamaConfig
from protocol.errors import LocalProtocolError
from protocol.tensors.model_config import (
    ModelConfig,
    layer_of,
    model_parts,
    model_schema,
    num_matrix_values,
    num_values,
)
from protocol.tensors.tensor_schema import TensorSpec

CONFIG = LlamaConfig(dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24, context_tokens=8, is_tied=False)


@dataclass(frozen=True)
class _Listed:
    """A family whose tensors have these names."""

    names: tuple[str, ...]
    num_layers: int = 2
    family: str = "listed"

    def tensors(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, (1,)) for name in self.names)


def test_the_parts_one_after_another_are_the_models_tensors() -> None:
    parts = model_parts(CONFIG)
    joined = (*parts.first, *(spec for layer in parts.layers for spec in layer), *parts.last)
    assert joined == model_schema(CONFIG).tensors
    assert [spec.name for spec in parts.first] == ["embed.weight"]
    assert [spec.name for spec in parts.last] == ["norm.weight", "head.weight"]
    assert [len(layer) for layer in parts.layers] == [9, 9]


@pytest.mark.parametrize(
    "names",
    [
        ("layers.0.w", "layers.1.w", "embed.weight"),
        ("embed.weight", "layers.1.w", "layers.0.w"),
        ("embed.weight", "layers.0.w", "layers.1.w", "layers.0.v"),
        ("embed.weight", "layers.0.w", "norm.weight", "layers.1.w"),
        ("embed.weight", "layers.0.w"),
        ("embed.weight", "norm.weight"),
    ],
)
def test_tensors_in_another_order_are_refused_with_the_order_that_is_expected(names: tuple[str, ...]) -> None:
    with pytest.raises(LocalProtocolError, match="then layer after layer"):
        model_parts(cast(ModelConfig, _Listed(names)))


def test_a_tensors_layer_is_told_by_its_name() -> None:
    assert [layer_of(name) for name in ("embed.weight", "layers.11.wq.weight", "norm.weight")] == [None, 11, None]


def test_values_are_counted_with_and_without_vectors() -> None:
    (layer, _) = model_parts(CONFIG).layers
    matrices = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24
    assert (num_matrix_values(layer), num_values(layer)) == (matrices, matrices + 2 * 16)
