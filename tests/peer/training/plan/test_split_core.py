from __future__ import annotations

import pytest

from averaging.models.llama.config import LlamaConfig
from peer.training.plan.layout import Mesh
from peer.training.plan.split_core import (
    context_place,
    reader_of,
    tensor_place,
    token_spans,
    why_no_context,
    why_no_tensor,
)
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.model_families import parse_model

MODEL = LlamaConfig(dim=48, num_layers=2, num_heads=6, num_kv_heads=2, ffn_dim=44, context_tokens=48)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_ranks_have_each_position_once_and_the_same_number_of_earlier_tokens(num_ranks: int) -> None:
    own = [[place for span in token_spans(rank, num_ranks, 48) for place in span] for rank in range(num_ranks)]
    assert sorted(place for places in own for place in places) == [*range(48)]
    assert len({sum(places) for places in own}) == len({len(places) for places in own}) == 1


def test_places_of_a_mesh_name_who_shares_sequences_and_who_shares_layers() -> None:
    mesh = Mesh(shard=4, tensor=2, context=2)
    assert [reader_of(mesh, rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [context_place(mesh, rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [tensor_place(mesh, rank) for rank in range(8)] == [0, 1] * 4


def test_a_context_that_ranks_do_not_divide_evenly_cannot_be_shared() -> None:
    assert [why_no_context(MODEL, ranks) for ranks in (1, 2, 3, 4)] == [""] * 4
    assert "data.isolate" in why_no_context(MODEL, 2, isolates=True)
    assert why_no_context(MODEL, 1, isolates=True) == ""
    assert why_no_context(MODEL, 5) == "a context of 48 tokens is not a multiple of 10"


def test_a_layer_is_shared_by_as_many_as_divide_its_heads_and_inner_values() -> None:
    assert [why_no_tensor(MODEL, ranks) for ranks in (1, 2)] == ["", ""]
    assert why_no_tensor(MODEL, 4) == "6 heads are not a multiple of 4"
    assert why_no_tensor(MODEL, 3) == "2 key-value heads are not a multiple of 3"
    odd = MODEL.model_copy(update={"num_kv_heads": 6})
    assert why_no_tensor(odd, 3) == "44 inner values are not a multiple of 3"
    assert why_no_tensor(MODEL, 2, MixtureConfig(num_experts=2, ffn_dim=13)) == (
        "13 inner values of an expert are not a multiple of 2"
    )


def test_a_family_that_tells_no_way_cannot_be_split() -> None:
    class Whole(LlamaConfig):
        @property
        def split_counts(self) -> dict[str, int]:
            return {}

        @property
        def shares_contexts(self) -> bool:
            return False

    whole = Whole.model_validate(MODEL.model_dump())
    assert why_no_tensor(whole, 2) == "layers of a model of family llama cannot be shared"
    assert why_no_context(whole, 2) == "the tokens of a sequence cannot be shared in this model of family llama"
    assert why_no_tensor(whole, 1) == why_no_context(whole, 1) == ""


def test_a_norm_over_all_heads_and_a_window_over_all_tokens_cannot_be_split() -> None:
    olmo2 = parse_model({**MODEL.model_dump(), "family": "olmo2"})
    assert why_no_tensor(olmo2, 2) == "layers of a model of family olmo2 cannot be shared"
    assert why_no_context(olmo2, 2) == ""
    mistral, narrow = (parse_model({**MODEL.model_dump(), "family": "mistral", "window_tokens": n}) for n in (48, 47))
    assert [why_no_tensor(each, 2) for each in (mistral, narrow)] == ["", ""]
    assert why_no_context(mistral, 2) == ""
    assert why_no_context(narrow, 2) == "the tokens of a sequence cannot be shared in this model of family mistral"
