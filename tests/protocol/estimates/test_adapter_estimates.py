"""The memory of a card for a base with an adapter, by the formula that a peer plans with."""

from __future__ import annotations

import pytest

from averaging.models.llama.config import LlamaConfig
from peer.training.plan.card_memory_core import adapter_load, memory_need
from peer.training.plan.card_plan import CardPlan
from protocol.estimates.adapter_estimates import adapter_card_bytes, adapter_estimates
from protocol.run.manifest import default_run_toml, parse_run_config
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig

LLAMA_8B = LlamaConfig(
    vocab_size=128_256,
    dim=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    ffn_dim=14_336,
    context_tokens=2048,
    is_tied=False,
)
RANK_16 = AdapterConfig(rank=16, alpha=32.0)
SMALLEST = CardPlan(precision="bf16", checkpointing="full")
TOML = default_run_toml().replace("[run]\n", '[run]\nstart_from = "base"\n', 1) + "\n[adapter]\nrank = 4\n"


@pytest.mark.parametrize("context_tokens", [512, 2048, 16_384])
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_formula_is_that_of_a_peers_smallest_exact_plan(context_tokens: int, is_tied: bool) -> None:
    model = LLAMA_8B.model_copy(update={"context_tokens": context_tokens, "is_tied": is_tied})
    inner = InnerSection(learning_rate=1e-4, batch_tokens=context_tokens)
    planned = memory_need(adapter_load(model, RANK_16), inner, 1, SMALLEST).total
    assert adapter_card_bytes(model, RANK_16) == pytest.approx(planned, rel=0.01)


def test_8b_values_with_rank_16_fit_a_card_of_24_gb() -> None:
    assert 16e9 < adapter_card_bytes(LLAMA_8B, RANK_16) < 20e9


def test_a_run_with_an_adapter_tells_its_base_and_its_card() -> None:
    base, card = adapter_estimates(parse_run_config(TOML))
    assert (base.name, card.name) == ("base", "a card")
    assert base.expected.endswith("of data, in bfloat16")
    assert card.expected.endswith("which fits 24.0 GB")


def test_a_run_without_an_adapter_tells_nothing_of_it() -> None:
    assert adapter_estimates(parse_run_config(default_run_toml())) == ()


def test_8b_values_in_8_bits_fit_a_card_of_16_gb() -> None:
    assert 8e9 < adapter_card_bytes(LLAMA_8B, RANK_16.model_copy(update={"base": "int8"})) < 13e9
