"""A decoder in stages is the decoder; dropout is the same each time; what no stage sends is refused."""

from __future__ import annotations

import pytest
import torch

from peer.models.decoder import Decoder, load_flat
from peer.models.stage_model import Masks, StageDecoder
from protocol.errors import ConfigError, RemoteProtocolError
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap, stage_schema
from tests.peer.stage_world import ANCHOR_N, MODEL, STAGES, stage_model, tokens, whole_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stages_one_after_another_give_the_decoders_logits_to_the_bit(dtype: torch.dtype) -> None:
    tokens_BT = tokens(1)[:, :-1]
    moved = tokens_BT
    for stage in range(STAGES.num_stages):
        moved = stage_model(stage, dtype)(moved)
    assert torch.equal(moved, whole_model(dtype)(tokens_BT))


def test_one_stage_may_have_its_embedding_for_a_head() -> None:
    tied = MODEL.model_copy(update={"is_tied": True})
    stages = StageMap(tied, (4,))
    alone, whole = StageDecoder(stages, 0), Decoder(tied)
    flat_N = ANCHOR_N[: model_schema(tied).num_elements]
    load_flat(alone, stage_schema(stages, 0), flat_N)
    load_flat(whole, model_schema(tied), flat_N)
    assert torch.equal(alone(tokens(1)[:, :-1]), whole(tokens(1)[:, :-1]))


def test_dropout_is_the_same_with_one_seed_and_another_with_another() -> None:
    model = stage_model(1, dropout=0.5)
    x_BTD = torch.randn(2, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(model(x_BTD, 7), model(x_BTD, 7))
    assert not torch.equal(model(x_BTD, 7), model(x_BTD, 8))
    assert not torch.equal(model(x_BTD, 7), stage_model(1)(x_BTD, 7))


def test_masks_drop_their_share_keep_the_mean_and_never_repeat() -> None:
    masks = Masks(0.25, 11)
    first, second = masks(torch.ones(100, 100)), masks(torch.ones(100, 100))
    assert not torch.equal(first, second)
    assert float((first == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(first, Masks(0.25, 11)(torch.ones(100, 100)))
    # whole numbers, so that no release of any library draws others
    assert (Masks(0.5, 1)(torch.ones(16)) > 0).int().tolist() == MASK


MASK = [0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0]


def test_a_share_of_all_is_no_dropout() -> None:
    with pytest.raises(ConfigError, match="less than 1"):
        StageDecoder(STAGES, 1, dropout=1.0)


@pytest.mark.parametrize(
    ("stage", "arrived", "message"),
    [
        (0, torch.zeros(2, 8, dtype=torch.int32), "tokens of shape"),
        (0, torch.zeros(2, 9, dtype=torch.int64), "tokens of shape"),
        (0, torch.zeros(16, dtype=torch.int64), "tokens of shape"),
        (0, torch.full((2, 8), MODEL.vocab_size), "vocabulary"),
        (0, torch.full((2, 8), -1), "vocabulary"),
        (0, torch.zeros(0, 8, dtype=torch.int64), "vocabulary"),
        (1, torch.zeros(2, 8, 16, dtype=torch.int64), "activations of shape"),
        (1, torch.zeros(2, 9, 16), "activations of shape"),
        (1, torch.zeros(2, 8, 17), "activations of shape"),
        (1, torch.zeros(0, 8, 16), "activations of shape"),
        (2, torch.full((2, 8, 16), torch.inf), "not finite"),
        (2, torch.full((2, 8, 16), torch.nan), "not finite"),
    ],
)
def test_what_no_stage_sends_is_refused_with_a_reason(stage: int, arrived: torch.Tensor, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        stage_model(stage).require_input(arrived)


def test_planned_memory_of_a_layer_is_what_its_backward_pass_keeps() -> None:
    model, x_BTD = stage_model(1, torch.float32), torch.randn(2, 8, 16, requires_grad=True)
    weights = {parameter.data_ptr() for parameter in model.parameters()} | {model.table.data_ptr()}
    kept: dict[tuple[int, int], int] = {}

    def keep(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[(storage.data_ptr(), storage.nbytes())] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        model(x_BTD)
    measured = sum(kept.values()) / 4 / (2 * 8) / 2  # values a token and layer; this stage has two
    assert measured <= MODEL.layer_kept_values <= 1.3 * measured
