from __future__ import annotations

import pytest
from pydantic import ValidationError

from averaging.models.llama.config import LlamaConfig
from protocol.tensors.model_config import model_schema

SMALL = {
    "dim": 16,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_dim": 24,
    "context_tokens": 8,
}


def test_the_schema_lists_every_tensor_once_with_grouped_key_and_value_shapes() -> None:
    schema = model_schema(LlamaConfig(**SMALL))
    shapes = {spec.name: spec.shape for spec in schema.tensors}
    assert shapes["embed.weight"] == (257, 16)
    assert shapes["layers.1.wk.weight"] == (8, 16)
    assert shapes["layers.0.w_down.weight"] == (16, 24)
    assert "head.weight" not in shapes
    assert len(shapes) == 1 + 2 * 9 + 1


def test_an_untied_head_is_a_tensor_of_its_own() -> None:
    schema = model_schema(LlamaConfig(**SMALL, is_tied=False))
    assert schema.tensors[-1].name == "head.weight"


@pytest.mark.parametrize(
    "wrong",
    [{"dim": 18}, {"num_heads": 3}, {"num_kv_heads": 3}, {"dim": 0}, {"num_layers": -1}, {"dim": 4}, {"width": 3}],
)
def test_sizes_that_do_not_fit_together_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        LlamaConfig(**{**SMALL, **wrong})
