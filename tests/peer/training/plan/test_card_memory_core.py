from __future__ import annotations

import pytest

from averaging.models.llama.config import LlamaConfig
from peer.models.chunked_loss import CARD_LOGITS, CPU_LOGITS, LEAST_CHUNK_TOKENS
from peer.models.frozen_linear import CAST_VALUES
from peer.training.plan import card_memory_core
from peer.training.plan.card_memory_core import (
    adapter_load,
    away_bytes,
    experts_load,
    flops_per_token,
    memory_need,
    stage_load,
    whole_load,
)
from peer.training.plan.card_plan import FLOAT32, CardPlan
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_families import parse_model
from protocol.tensors.stage_schema import StageMap
from tests.oracles.counted_memory import counted_bytes, expected, expected_of_adapter

M25 = LlamaConfig(
    vocab_size=16384, dim=512, num_layers=6, num_heads=8, num_kv_heads=2, ffn_dim=1408, context_tokens=512
)
INNER = InnerSection(learning_rate=1e-3, batch_tokens=4096)
MUON = InnerSection(learning_rate=1e-3, batch_tokens=4096, optimizer="muon")
NEAR = 0.1


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_need_of_25m_values_is_near_what_torch_counts(precision: str, checkpointing: str) -> None:
    plan = CardPlan.model_validate({"precision": precision, "checkpointing": checkpointing})
    counted = counted_bytes(M25, INNER, 4, plan)
    assert expected(M25, INNER, 4, plan).total == pytest.approx(counted, rel=NEAR)


def test_the_need_of_untied_tables_and_one_sequence_is_near_what_torch_counts() -> None:
    untied = M25.model_copy(update={"is_tied": False})
    for plan in (FLOAT32, CardPlan(precision="bf16", checkpointing="full")):
        assert expected(untied, INNER, 1, plan).total == pytest.approx(counted_bytes(untied, INNER, 1, plan), rel=NEAR)


@pytest.mark.parametrize(
    "others", [{"family": "olmo2"}, {"family": "mistral", "window_tokens": 128}], ids=["norms", "window"]
)
def test_the_need_of_other_families_is_near_what_torch_counts(others: dict[str, object]) -> None:
    small = {"vocab_size": 4096, "dim": 256, "num_layers": 2, "head_dim": 32, "ffn_dim": 704}
    model = parse_model({**M25.model_dump(), **small, **others})
    assert expected(model, INNER, 4, FLOAT32).total == pytest.approx(counted_bytes(model, INNER, 4, FLOAT32), rel=NEAR)


def test_the_constants_of_the_loss_are_those_of_the_loss() -> None:
    found = (card_memory_core.CPU_LOGITS, card_memory_core.CARD_LOGITS, card_memory_core.LEAST_CHUNK_TOKENS)
    assert found == (CPU_LOGITS, CARD_LOGITS, LEAST_CHUNK_TOKENS)


def test_moments_take_8_bytes_a_value_4_for_matrices_of_muon_and_2_in_int8() -> None:
    load, num = whole_load(M25), model_schema(M25).num_elements
    assert memory_need(load, INNER, 1, FLOAT32).moments == 8 * num
    inside = num - M25.vocab_size * M25.dim - 13 * M25.dim
    assert memory_need(load, MUON, 1, FLOAT32).moments == 8 * num - 4 * inside
    assert memory_need(load, INNER, 1, CardPlan(moments="int8")).moments == round(2.03 * num)


def test_offloaded_moments_are_on_the_card_for_one_parameter_at_a_time() -> None:
    need = memory_need(whole_load(M25), INNER, 1, CardPlan(offload="moments"))
    assert (need.moments, need.step) == (0, 8 * M25.vocab_size * M25.dim)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_need_of_parameters_in_the_machines_memory_is_near_what_torch_counts_on_the_card(precision: str) -> None:
    plan = CardPlan.model_validate({"precision": precision, "checkpointing": "full", "offload": "all"})
    for inner in (INNER, MUON):
        counted = counted_bytes(M25, inner, 1, plan)
        assert expected(M25, inner, 1, plan).total == pytest.approx(counted, rel=NEAR)


def test_what_does_not_lie_on_the_card_lies_in_the_machines_memory() -> None:
    load, num = whole_load(M25), model_schema(M25).num_elements
    assert [away_bytes(load, INNER, each) for each in ("none", "moments", "all")] == [0, 8 * num, 16 * num]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_rung_of_checkpointing_takes_less_than_the_one_before(precision: str) -> None:
    plans = [
        CardPlan.model_validate({"precision": precision, "checkpointing": kind})
        for kind in ("none", "selective", "full")
    ]
    plain, selective, full = (memory_need(whole_load(M25), INNER, 16, plan) for plan in plans)
    assert plain.activations > selective.activations > full.activations
    assert plain.total > selective.total > full.total


@pytest.mark.parametrize("optimizer", [INNER, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_without_layers_has_a_plan_too(stage: int, optimizer: InnerSection) -> None:
    untied = M25.model_copy(update={"is_tied": False})
    spans = (0, M25.num_layers) if stage == 0 else (M25.num_layers, 0)
    load = stage_load(StageMap(untied, spans), stage, 2)
    for plan in (FLOAT32, CardPlan(precision="bf16", checkpointing="full", offload="moments")):
        need = memory_need(load, optimizer, 1, plan)
        assert need.activations == 0
        assert need.total > 0


def test_a_stage_takes_its_layers_and_as_many_micro_batches_as_it_keeps() -> None:
    stages = StageMap(M25.model_copy(update={"is_tied": False}), (2, 2, 2))
    middle, last = (stage_load(stages, stage, kept) for stage, kept in ((1, 2), (2, 1)))
    assert (middle.num_layers, middle.has_embedding, middle.has_head) == (2, False, False)
    one = memory_need(stage_load(stages, 1, 1), INNER, 4, FLOAT32)
    two = memory_need(middle, INNER, 4, FLOAT32)
    assert (two.activations, two.parameters) == (2 * one.activations, one.parameters)
    assert (one.loss, memory_need(last, INNER, 4, FLOAT32).loss > 0) == (0, True)


def test_an_expert_adds_its_feed_forward_to_each_layer() -> None:
    mixture = MixtureConfig(num_experts=4, ffn_dim=256)
    trunk, one, two = whole_load(M25), experts_load(M25, mixture, (1,)), experts_load(M25, mixture, (1, 2))
    assert two.num_values - one.num_values == one.num_values - trunk.num_values == 6 * 3 * 256 * 512
    assert trunk.layer.kept < one.layer.kept == two.layer.kept


def test_operations_a_token_count_each_matrix_once_and_a_lookup_never() -> None:
    num, attention = model_schema(M25).num_elements, 12 * 6 * 512 * 512
    assert flops_per_token(whole_load(M25)) == 6 * num + attention
    untied = M25.model_copy(update={"is_tied": False})
    assert flops_per_token(whole_load(untied)) == 6 * num + attention
    mistral = parse_model({**M25.model_dump(), "family": "mistral", "window_tokens": 128})
    assert flops_per_token(whole_load(mistral)) == 6 * num + attention * 7 // 16
    stages = StageMap(untied, (3, 3))
    parts = [flops_per_token(stage_load(stages, stage, 1)) for stage in (0, 1)]
    assert sum(parts) == flops_per_token(whole_load(untied))


@pytest.mark.parametrize(("precision", "checkpointing"), [("fp32", "selective"), ("bf16", "none"), ("bf16", "full")])
def test_the_need_of_an_adapter_is_what_torch_counts_or_somewhat_more(precision: str, checkpointing: str) -> None:
    plan = CardPlan.model_validate({"precision": precision, "checkpointing": checkpointing})
    adapter, model = AdapterConfig(rank=16, alpha=16.0), M25.model_copy(update={"num_layers": 2})
    counted = counted_bytes(model, INNER, 4, plan, adapter)
    assert 0.99 < expected_of_adapter(model, adapter, INNER, 4, plan).total / counted < 1.25


def test_an_adapter_has_gradients_and_moments_of_its_own_values_alone() -> None:
    adapter = AdapterConfig(rank=8, alpha=16.0, targets=("q_proj", "v_proj"))
    need, own = memory_need(adapter_load(M25, adapter), INNER, 1, FLOAT32), adapter_schema(M25, adapter).num_elements
    assert (need.gradients, need.moments) == (4 * own, 8 * own)
    assert need.parameters == 4 * own + 2 * model_schema(M25).num_elements
    assert need.tables == 0


def test_a_frozen_value_counts_4_operations_a_token() -> None:
    adapter = AdapterConfig(rank=8, alpha=16.0)
    own = adapter_schema(M25, adapter).num_elements
    more = 6 * own - 2 * model_schema(M25).num_elements
    assert flops_per_token(adapter_load(M25, adapter)) == flops_per_token(whole_load(M25)) + more


def test_the_constant_of_frozen_products_is_theirs() -> None:
    assert card_memory_core.CAST_VALUES == CAST_VALUES
