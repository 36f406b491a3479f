"""Losses of an expert run: each window by its expert, of the merged model, and a dense model of the same cost."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder
from peer.models.expert_evaluation import merged_loss, merged_quality, routed_loss
from peer.models.mixture import MixtureDecoder
from protocol.errors import LocalProtocolError
from protocol.tensors.expert_schema import MixtureConfig

DECODER = LlamaConfig(dim=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=8)
MIXTURE = MixtureConfig(num_experts=2, ffn_dim=12)
GENERATOR = torch.Generator().manual_seed(3)


def _windows(count: int) -> torch.Tensor:
    return torch.randint(257, (count, 9), generator=GENERATOR)


def _model() -> MixtureDecoder:
    torch.manual_seed(1)
    return MixtureDecoder(DECODER, MIXTURE, [0, 1], is_merged=True)


def test_every_window_counts_once_with_its_own_expert() -> None:
    model, windows = _model(), {0: _windows(3), 1: _windows(70)}
    with torch.no_grad():
        losses = [
            float(functional.cross_entropy(model(row[None, :-1], expert).flatten(0, 1), row[1:]))
            for expert, rows in windows.items()
            for row in rows
        ]
    assert routed_loss(model, windows) == pytest.approx(math.fsum(losses) / 73, abs=1e-5)
    assert routed_loss(model, {**windows, 1: windows[1][:0]}) == pytest.approx(math.fsum(losses[:3]) / 3, abs=1e-5)


def test_a_merged_and_a_dense_model_are_told_no_expert() -> None:
    model, windows = _model(), _windows(5)
    with torch.no_grad():
        expected = float(functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()))
    assert merged_loss(model, windows) == pytest.approx(expected, abs=1e-6)
    assert merged_loss(Decoder(DECODER), windows) > 0.0
    for nothing in (lambda: merged_loss(model, windows[:0]), lambda: routed_loss(model, {})):
        with pytest.raises(LocalProtocolError, match="a loss of no windows"):
            nothing()


def _sending_all_to(expert: int) -> MixtureDecoder:
    """Routers that know one expert, whatever a token is: its row is the direction that all tokens have in common."""
    model = _model()
    with torch.no_grad():
        model.embed.weight.copy_(model.embed.weight.abs() + 4.0)
        for name, weight in model.named_parameters():
            if name.endswith("router.weight"):
                weight.zero_()
                weight[expert] = 1.0
    return model


def test_a_merged_model_is_told_by_its_loss_beside_the_routed_one_and_by_where_its_windows_go() -> None:
    windows = {0: _windows(30), 1: _windows(10)}
    for expert, share in ((0, 0.75), (1, 0.25)):
        model = _sending_all_to(expert)
        quality = merged_quality(model, windows)
        assert quality.agreement == share
        assert quality.routed_nats == pytest.approx(routed_loss(model, windows))
        assert quality.merged_nats == pytest.approx(merged_loss(model, torch.cat([windows[0], windows[1]])))
        assert quality.merged_nats != quality.routed_nats
    assert "25% of its windows go mostly to that one" in quality.sentence
    with pytest.raises(LocalProtocolError, match="a loss of no windows"):
        merged_quality(model, {})


def test_a_merged_model_without_some_expert_is_measured_by_the_numbers_of_those_that_it_has() -> None:
    torch.manual_seed(1)
    model = MixtureDecoder(DECODER, MIXTURE, [1], is_merged=True)
    assert merged_quality(model, {1: _windows(4)}).agreement == 1.0
