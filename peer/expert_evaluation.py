"""What an expert run's model is worth: held-out loss with each document sent to its expert, of the merged model, and of a dense model
that costs as much to run.

Shapes: W windows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from peer.mixture import MixtureDecoder
from protocol.decoder_schema import DecoderConfig
from protocol.errors import LocalProtocolError
from protocol.expert_schema import MixtureConfig

AT_ONCE: Final = 64
"""Windows that are computed together."""


def routed_loss(model: MixtureDecoder, windows: Mapping[int, torch.Tensor]) -> float:
    """Mean loss in nats a token of documents, each by its own expert: what the run trains, before anything is merged.

    Args:
        windows: of each expert (W, T + 1) int64 of the documents that the run's router sends to it.

    Raises:
        LocalProtocolError: there are none.
    """
    return _mean([(_loss(model, windows_WT, expert), len(windows_WT)) for expert, windows_WT in windows.items()])


def merged_loss(model: nn.Module, windows_WT: torch.Tensor) -> float:
    """Mean loss in nats a token of a model that is told no expert: a merged one, or a dense one. Raises as `routed_loss`."""
    return _mean([(_loss(model, windows_WT, None), len(windows_WT))])


def dense_of_equal_cost(decoder: DecoderConfig, mixture: MixtureConfig) -> DecoderConfig:
    """The dense decoder that does as much for a token: its feed-forward is as wide as the shared one and the top_k experts that a
    token passes. Where a document passes one expert, it has as many parameters as a peer that holds one.
    """
    return decoder.model_copy(update={"ffn_dim": decoder.ffn_dim + mixture.top_k * mixture.ffn_dim})


def _mean(losses: list[tuple[float, int]]) -> float:
    count = sum(number for _, number in losses)
    if not count:
        raise LocalProtocolError("a loss of no windows", "some to measure on")
    return math.fsum(loss * number for loss, number in losses if number) / count


@torch.no_grad()
def _loss(model: nn.Module, windows_WT: torch.Tensor, expert: int | None) -> float:
    total = 0.0
    for part_WT in torch.split(windows_WT, AT_ONCE) if len(windows_WT) else ():
        inputs_WT = part_WT[:, :-1]
        logits_WTV = model(inputs_WT) if expert is None else model(inputs_WT, expert)
        total += float(functional.cross_entropy(logits_WTV.flatten(0, 1), part_WT[:, 1:].flatten())) * len(part_WT)
    return total / max(1, len(windows_WT))
