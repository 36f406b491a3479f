from __future__ import annotations

import pytest
from pydantic import ValidationError

from averaging.models.llama.config import LlamaConfig
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_families import FAMILIES, parse_model

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


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_of_later_releases_are_written_only_where_they_are_used(family: str) -> None:
    first = {*SMALL, "vocab_size", "rope_theta", "norm_eps", "is_tied"}
    plain = parse_model({**SMALL, "family": family})
    assert plain.model_dump().keys() == first | ({"family"} if family != "llama" else set())
    stretched = parse_model({**SMALL, "family": family, "rope_scaling": "linear", "rope_factor": 2.0, "head_dim": 8})
    assert stretched.model_dump().keys() - plain.model_dump().keys() == {"rope_scaling", "rope_factor", "head_dim"}
    assert parse_model(stretched.model_dump()) == stretched


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dim": 18}, "dim 18 over 4 heads: expected a whole ratio"),
        ({"dim": 18, "head_dim": 4}, "dim 18 over 4 heads: expected a whole ratio, even with head_dim"),
        ({"head_dim": 5}, "5 values per head: expected an even number"),
        ({"rope_factor": 2.0}, 'rope_factor does not belong to rope_scaling = "none"'),
        (
            {"rope_scaling": "linear", "rope_beta_fast": 8.0},
            'rope_beta_fast does not belong to rope_scaling = "linear"',
        ),
        ({"rope_scaling": "llama3", "rope_factor": 2.0}, 'rope_scaling = "llama3" needs rope_original_tokens'),
        (
            {"rope_scaling": "llama3", "rope_original_tokens": 8, "rope_low_freq_factor": 4.0},
            "rope_low_freq_factor 4.0: expected less than rope_high_freq_factor",
        ),
        (
            {"rope_scaling": "yarn", "rope_original_tokens": 8, "rope_beta_slow": 32.0},
            "rope_beta_slow 32.0: expected less than rope_beta_fast",
        ),
        ({"rope_scaling": "dynamic"}, "Input should be 'none', 'linear', 'llama3' or 'yarn'"),
        ({"window_tokens": 4}, "window_tokens"),
    ],
)
def test_keys_that_do_not_belong_together_are_named(changes: dict[str, object], found: str) -> None:
    with pytest.raises(ValidationError) as raised:
        parse_model({**SMALL, **changes})
    assert found in str(raised.value)


def test_work_of_attention_grows_with_the_window_and_not_with_the_context() -> None:
    sizes = {**SMALL, "family": "mistral", "context_tokens": 1000}
    assert parse_model(sizes).attended_tokens == 1000
    assert parse_model({**sizes, "window_tokens": 1000}).attended_tokens == 1000
    assert parse_model({**sizes, "window_tokens": 100}).attended_tokens == 190
