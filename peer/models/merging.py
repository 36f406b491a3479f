"""One sparse mixture of a trunk and its experts: `merge` puts them together, `tune_routers` lets the routers learn.

A router's row for an expert begins as the direction in which that expert's documents lie: the mean of what the layer's experts are
given (behind its norm) over tokens of that expert's documents, less the mean over everybody's (as FlexOlmo, 2507.07024,
which takes a domain's mean embedding for its row). Nothing has to be trained jointly, and one can be taken out later: the rows of the
others stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch.nn import functional

from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import load_flat
from peer.models.expert_evaluation import MergedQuality, merged_quality
from peer.models.mixture import MixtureDecoder, MixtureLayer, Router, balance_loss, router_z_loss
from protocol.errors import LocalProtocolError
from protocol.tensors.expert_schema import MixtureConfig, held_units

BALANCE_WEIGHT: Final = 1e-2
"""Of the balance loss beside the loss of the tokens (Switch Transformer, 2101.03961, section 2.2)."""

Z_WEIGHT: Final = 1e-3
"""Of the router's z-loss (ST-MoE, 2202.08906, section 3.3)."""


SAMPLE_WINDOWS: Final = 64
"""Of an expert's documents that its routers' rows are made of."""

TUNE_WINDOWS: Final = 8
"""Of each expert in a step of tuning."""

LEARN_FROM: Final = 2
"""Experts of a token that its routers are tuned with, at least."""


HELDOUT_WINDOWS: Final = 64
"""Of each expert's held-out text that a merged model is measured on."""


class ExpertText(Protocol):
    """Text of experts' own documents."""

    def windows(self, expert: int, step: int, count: int) -> torch.Tensor:
        """(count, T + 1) int64, the same for the same step."""
        ...

    def heldout(self, expert: int, count: int) -> torch.Tensor:
        """(count, T + 1) int64 of what is kept for evaluation, always the same ones."""
        ...


@dataclass(frozen=True)
class Merged:
    """A merged model: its tensors by the names of peer/models/mixture.py, how its routers came about in some words, and their
    worth.
    """

    tensors: Mapping[str, torch.Tensor]
    told: str
    quality: MergedQuality


def merge_with_text(
    decoder: LlamaConfig,
    mixture: MixtureConfig,
    trunk_N: torch.Tensor,
    experts: Mapping[int, torch.Tensor],
    text: ExpertText,
    tune_steps: int,
    without: Sequence[int] = (),
) -> Merged:
    """One model of a run's parts, its routers made of the experts' text and tuned for so many steps, and measured on held-out text.

    Experts of `without` are taken out at the end, so that what is not sent to them is as in the model that has them; of the others'
    held-out text it is measured.

    Raises:
        LocalProtocolError: as `merge` and `without_expert`.
    """
    samples = {expert: text.windows(expert, 0, SAMPLE_WINDOWS)[:, :-1] for expert in experts}
    model = merge(decoder, mixture, trunk_N, experts, samples)
    batches = (
        torch.cat([text.windows(expert, step, TUNE_WINDOWS) for expert in sorted(experts)])
        for step in range(1, tune_steps + 1)
    )
    loss_nats = tune_routers(model, batches)
    told = f"with routers tuned for {tune_steps} steps to {loss_nats:.3f} nats a token" if tune_steps else ""
    for expert in without:
        model = without_expert(model, expert)
    quality = merged_quality(model, {expert: text.heldout(expert, HELDOUT_WINDOWS) for expert in model.experts})
    return Merged(dict(model.state_dict()), told or "with routers made of each expert's text", quality)


def holder_model(
    decoder: LlamaConfig, mixture: MixtureConfig, experts: Sequence[int], flat_N: torch.Tensor
) -> MixtureDecoder:
    """A peer's model from its flat vector: trunk and experts one after another, (N,) float32."""
    model = MixtureDecoder(decoder, mixture, experts)
    load_flat(model, held_units(decoder, mixture, experts).whole, flat_N)
    return model


def merge(
    decoder: LlamaConfig,
    mixture: MixtureConfig,
    trunk_N: torch.Tensor,
    experts: Mapping[int, torch.Tensor],
    samples: Mapping[int, torch.Tensor],
) -> MixtureDecoder:
    """One model of a trunk (N,) float32 and experts (M,) float32 by their numbers.

    Args:
        samples: of each expert (B, T) int64, tokens of documents that are its own: what its routers' rows are made of.

    Raises:
        LocalProtocolError: vectors of another length than the run's units have, or an expert without samples.
    """
    if set(samples) != set(experts) or not experts:
        raise LocalProtocolError(f"samples of experts {sorted(samples)}", f"of {sorted(experts)}, one at least")
    numbers = sorted(experts)
    model = MixtureDecoder(decoder, mixture, numbers, is_merged=True)
    parameters = dict(model.named_parameters())
    units = held_units(decoder, mixture, numbers)
    for schema, flat in zip(units.schemas, [trunk_N, *(experts[number] for number in numbers)], strict=True):
        if flat.numel() != schema.num_elements:
            raise LocalProtocolError(f"{schema.unit} of {flat.numel()} values", f"{schema.num_elements}")
        with torch.no_grad():
            for spec in schema.tensors:
                part = flat[schema.offset(spec.name) :][: spec.num_elements]
                parameters[spec.name].copy_(part.view(spec.shape))
    means = {number: _mean_inputs(model, samples[number], number) for number in numbers}
    for place, router in enumerate(_routers(model)):
        rows_XD = torch.stack([means[number][place] for number in numbers])
        with torch.no_grad():
            router.weight.copy_(_rows(rows_XD))
    return model


def _layers(model: MixtureDecoder) -> list[MixtureLayer]:
    return [layer for layer in model.layers if isinstance(layer, MixtureLayer)]


def _routers(model: MixtureDecoder) -> list[Router]:
    return [layer.router for layer in _layers(model) if layer.router is not None]


def _rows(means_XD: torch.Tensor) -> torch.Tensor:
    """Router rows (X, D) from each expert's mean input: what sets it apart from everybody's mean.

    There is no bias, so a row has nothing in the direction of what all tokens share, which would prefer an expert whatever the token,
    and all are of length one: long ones would prefer the experts whose documents lie far out.
    """
    shared_D = means_XD.mean(0)
    away_XD = means_XD - shared_D
    away_XD = away_XD - (away_XD @ shared_D)[:, None] * shared_D / shared_D.square().sum().clamp_min(1e-12)
    rows_XD: torch.Tensor = away_XD / away_XD.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return rows_XD


@torch.no_grad()
def _mean_inputs(model: MixtureDecoder, tokens_BT: torch.Tensor, expert: int) -> list[torch.Tensor]:
    """What each layer's experts are given, (D,), in the mean over an expert's own documents."""
    seen: list[torch.Tensor] = []
    handles = [
        layer.ffn_norm.register_forward_hook(lambda _module, _inputs, y_BTD: seen.append(y_BTD.flatten(0, 1).mean(0)))
        for layer in _layers(model)
    ]
    try:
        model(tokens_BT, expert)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def tune_routers(model: MixtureDecoder, batches_BT: Iterable[torch.Tensor], rate: float = 1e-2) -> float:
    """Train the routers alone, AdamW, one step a batch (B, T) int64; the last loss in nats per token, NaN without a batch.

    A token passes two experts while they learn, also where it will pass one: the share of a single one is 1 whatever its router says,
    so the loss would tell the routers nothing, and what is left, the balance of experts, made a merged model worse (README.md).
    """
    rows = [router.weight for router in _routers(model)]
    top_k = min(max(LEARN_FROM, model.mixture.top_k), len(model.experts))
    optimizer = torch.optim.AdamW(rows, lr=rate, weight_decay=0.0)
    loss_nats = float("nan")
    for tokens_BT in batches_BT:
        logits_BTV, chosen = model.routed(tokens_BT[:, :-1], top_k=top_k)
        loss = functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        aside = BALANCE_WEIGHT * balance_loss(chosen, top_k) + Z_WEIGHT * router_z_loss(chosen)
        gradients = torch.autograd.grad(loss + aside, rows)
        for row, gradient in zip(rows, gradients, strict=True):
            row.grad = gradient
        optimizer.step()
        loss_nats = float(loss.detach())
    for row in rows:
        row.grad = None
    return loss_nats


def without_expert(model: MixtureDecoder, expert: int) -> MixtureDecoder:
    """A merged model less one expert. What the rest computes for tokens that were never sent to it stays the same, bit for bit.

    Raises:
        LocalProtocolError: it does not hold that expert, or no other, or fewer others than a token is sent to.
    """
    held = [int(number) for number in _layers(model)[0].experts]
    left = [number for number in held if number != expert]
    if expert not in held or len(left) < model.mixture.top_k:
        expected = f"one of {held}, and {model.mixture.top_k} others that stay"
        raise LocalProtocolError(f"expert {expert} of a merged model of {len(held)}", expected)
    smaller = MixtureDecoder(model.llama, model.mixture, left, is_merged=True)
    parameters, rows = dict(model.named_parameters()), [held.index(number) for number in left]
    with torch.no_grad():
        for name, parameter in smaller.named_parameters():
            source = parameters[name]
            parameter.copy_(source[rows] if name.endswith("router.weight") else source)
    return smaller
