from __future__ import annotations

from typing import Final

import pytest

from averaging.models.llama.config import LlamaConfig
from peer.models.chunked_loss import CPU_LOGITS
from peer.training.plan.card_memory_core import memory_need, whole_load
from peer.training.plan.card_plan import FLOAT32, CardPlan
from peer.training.plan.layout import Mesh
from peer.training.plan.rank_memory_core import ALONE, rank_bytes
from protocol.run.training_sections import InnerSection
from tests.oracles.counted_rank_memory import counted_rank_bytes

INNER: Final = InnerSection(learning_rate=1e-3, batch_tokens=1 << 16)
LOAD: Final = whole_load(
    LlamaConfig(
        vocab_size=32768, dim=2048, num_layers=16, num_heads=32, num_kv_heads=8, ffn_dim=5632, context_tokens=4096
    )
)
SMALL: Final = LlamaConfig(
    vocab_size=1024, dim=128, num_layers=5, num_heads=8, num_kv_heads=2, ffn_dim=352, context_tokens=256
)
NEAR: Final = 0.1
FULL: Final = CardPlan(precision="bf16", checkpointing="full")


def test_one_rank_alone_takes_what_a_card_takes() -> None:
    for plan in (FLOAT32, FULL):
        assert rank_bytes(LOAD, INNER, 2, plan, ALONE) == memory_need(LOAD, INNER, 2, plan).total


def test_ranks_share_parameters_gradients_and_moments() -> None:
    alone, need = rank_bytes(LOAD, INNER, 1, FULL, ALONE), memory_need(LOAD, INNER, 1, FULL)
    shared = need.parameters + need.gradients + need.moments
    for ranks in (2, 4, 8):
        spared = alone - rank_bytes(LOAD, INNER, 1, FULL, Mesh(shard=ranks))
        assert 0.9 * shared * (1 - 1 / ranks) < spared < 1.1 * shared * (1 - 1 / ranks)


def test_kept_parameters_take_more_and_split_sequences_less() -> None:
    sharded = rank_bytes(LOAD, INNER, 8, FULL, Mesh(shard=4))
    kept = rank_bytes(LOAD, INNER, 8, FULL, Mesh(shard=4, keeps_parameters=True))
    split = rank_bytes(LOAD, INNER, 8, FULL, Mesh(shard=4, context=4))
    assert split < sharded < kept


def test_rows_in_the_machines_memory_take_nothing_of_the_cards_but_what_is_gathered() -> None:
    mesh, away = Mesh(shard=4), FULL.model_copy(update={"offload": "all"})
    need = memory_need(LOAD, INNER, 1, FULL)
    rows = (need.parameters + need.gradients + need.moments) / mesh.num_ranks
    assert rank_bytes(LOAD, INNER, 1, FULL, mesh) - rank_bytes(LOAD, INNER, 1, away, mesh) == pytest.approx(
        rows, rel=0.05
    )
    more = rank_bytes(LOAD, INNER, 1, away, Mesh(shard=8))
    assert more == pytest.approx(rank_bytes(LOAD, INNER, 1, away, mesh), rel=0.01), "nothing is left to divide"


@pytest.mark.parametrize(
    ("mesh", "plan"),
    [
        (Mesh(shard=2), CardPlan(checkpointing="selective")),
        (Mesh(shard=2, keeps_parameters=True), FLOAT32),
        (Mesh(shard=4, context=4), CardPlan(precision="bf16")),
        (Mesh(shard=2, tensor=2), FLOAT32),
    ],
    ids=["rows", "rows, kept whole", "sequences", "rows and layers"],
)
def test_the_need_of_a_rank_is_near_what_torch_counts(mesh: Mesh, plan: CardPlan) -> None:
    need = rank_bytes(whole_load(SMALL), INNER, 2, plan, mesh, has_fused_norms=False, chunk_logits=CPU_LOGITS)
    assert need == pytest.approx(counted_rank_bytes(SMALL, INNER, 2, plan, mesh), rel=NEAR)
