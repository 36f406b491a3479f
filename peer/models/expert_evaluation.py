"""Measures an expert run's model by held-out loss: with each document routed to its expert, of the merged model, and of a dense
model of equal cost.

Shapes: W windows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from peer.models.mixture import MixtureDecoder
from protocol.errors import LocalProtocolError

AT_ONCE: Final = 64
"""Number of windows computed together."""


def routed_loss(model: MixtureDecoder, windows: Mapping[int, torch.Tensor]) -> float:
    """Mean loss in nats per token of documents, each by its own expert. The run trains this, before a merge.

    Args:
        windows: for each expert (W, T + 1) int64 of the documents that the run's router sends to it.

    Raises:
        LocalProtocolError: there are none.
    """
    return _mean([(_loss(model, windows_WT, expert), len(windows_WT)) for expert, windows_WT in windows.items()])


def merged_loss(model: nn.Module, windows_WT: torch.Tensor) -> float:
    """Mean loss in nats per token of a model without a given expert: a merged or a dense one. Raises as `routed_loss`."""
    return _mean([(_loss(model, windows_WT, None), len(windows_WT))])


@dataclass(frozen=True, slots=True)
class MergedQuality:
    """Quality of a merged model's routers, on windows of held-out documents that the run's router sent to experts.

    Attributes:
        routed_nats: loss in nats per token, each window by its own expert.
        merged_nats: loss on the same windows by the merged model, which is not given the expert.
        agreement: share of the windows, 0 to 1, whose top expert is the assigned one. The top expert has the largest gates over
            all tokens and layers.
    """

    routed_nats: float
    merged_nats: float
    agreement: float

    @property
    def sentence(self) -> str:
        """A one-line summary without a full stop."""
        return (
            f"held-out text: {self.merged_nats:.3f} nats a token, {self.routed_nats:.3f} with each document sent to its own expert; "
            f"{self.agreement:.0%} of its windows go mostly to that one"
        )


def merged_quality(model: MixtureDecoder, windows: Mapping[int, torch.Tensor]) -> MergedQuality:
    """Measure a merged model.

    Args:
        windows: for each of its experts (W, T + 1) int64 of held-out documents routed to it.

    Raises:
        LocalProtocolError: there are none.
    """
    routed_nats = routed_loss(model, windows)
    whole_WT = torch.cat([windows[expert] for expert in sorted(windows)])
    hits = sum(int((_top_experts(model, own_WT[:, :-1]) == expert).sum()) for expert, own_WT in windows.items())
    return MergedQuality(routed_nats, merged_loss(model, whole_WT), hits / len(whole_WT))


@torch.no_grad()
def _top_experts(model: MixtureDecoder, inputs_WT: torch.Tensor) -> torch.Tensor:
    """(W,) int64: for each window the expert with the largest gates over tokens and layers, the lower number among equals."""
    rows = []
    for part_WT in torch.split(inputs_WT, AT_ONCE) if len(inputs_WT) else ():
        gates_WX = torch.stack([routed.gates(model.mixture.top_k).sum(1) for routed in model.routed(part_WT)[1]])
        rows.append(gates_WX.sum(0).argmax(-1))
    return torch.tensor(model.experts)[torch.cat(rows)] if rows else torch.empty(0, dtype=torch.int64)


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
