"""Merges a trunk and its experts into one sparse mixture: `merge` builds it, and `tune_routers` trains its routers.

A router's row for an expert is initially the direction of that expert's documents. It is the mean input of the layer's experts
(after the norm) over tokens of that expert's documents, minus the mean over all experts. FlexOlmo (2507.07024) takes a domain's
mean embedding for its row in the same way. No joint training is needed, and an expert can be removed later without changing the
other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch.nn import functional

from averaging.host.progress import progress
from averaging.models.llama.config import LlamaConfig
from peer.models.expert_evaluation import MergedQuality, merged_quality
from peer.models.mixture import MixtureDecoder, MixtureLayer, Router, balance_loss, router_z_loss
from protocol.errors import LocalProtocolError
from protocol.tensors.expert_schema import MixtureConfig, held_units

BALANCE_WEIGHT: Final = 1e-2
"""Weight of the balance loss, added to the loss of the tokens (Switch Transformer, 2101.03961, section 2.2)."""

Z_WEIGHT: Final = 1e-3
"""Weight of the router's z-loss (ST-MoE, 2202.08906, section 3.3)."""


SAMPLE_WINDOWS: Final = 64
"""Windows of an expert's documents from which its routers' rows are made."""

TUNE_WINDOWS: Final = 8
"""Windows of each expert in a step of tuning."""

LEARN_FROM: Final = 2
"""Smallest number of experts per token while routers are tuned."""


HELDOUT_WINDOWS: Final = 64
"""Windows of each expert's held-out text on which a merged model is measured."""


class ExpertText(Protocol):
    """Text of experts' own documents."""

    def windows(self, expert: int, step: int, count: int) -> torch.Tensor:
        """(count, T + 1) int64, the same for the same step."""
        ...

    def heldout(self, expert: int, count: int) -> torch.Tensor:
        """(count, T + 1) int64 of the held-out text, always the same windows."""
        ...


@dataclass(frozen=True)
class Merged:
    """A merged model: its tensors by the names in peer/models/mixture.py, a short description of how its routers were made, and
    their quality.
    """

    tensors: Mapping[str, torch.Tensor]
    description: str
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
    """Merge a run's parts into one model. Its routers are made from the experts' text, tuned for this many steps, and evaluated on
    held-out text.

    Experts of `without` are removed at the end, so that tokens not sent to them give the same results as with them. The model is
    evaluated on the other experts' held-out text.

    Raises:
        LocalProtocolError: as `merge` and `without_expert`.
    """
    samples = {expert: text.windows(expert, 0, SAMPLE_WINDOWS)[:, :-1] for expert in experts}
    model = merge(decoder, mixture, trunk_N, experts, samples)
    with progress("tuning the routers", tune_steps, "steps") as shown:

        def batches() -> Iterator[torch.Tensor]:
            for step in range(1, tune_steps + 1):
                yield torch.cat([text.windows(expert, step, TUNE_WINDOWS) for expert in sorted(experts)])
                shown.add(1)

        loss_nats = tune_routers(model, batches())
    description = f"with routers tuned for {tune_steps} steps to {loss_nats:.3f} nats a token" if tune_steps else ""
    for expert in without:
        model = without_expert(model, expert)
    quality = merged_quality(model, {expert: text.heldout(expert, HELDOUT_WINDOWS) for expert in model.experts})
    return Merged(dict(model.state_dict()), description or "with routers made of each expert's text", quality)


def merge(
    decoder: LlamaConfig,
    mixture: MixtureConfig,
    trunk_N: torch.Tensor,
    experts: Mapping[int, torch.Tensor],
    samples: Mapping[int, torch.Tensor],
) -> MixtureDecoder:
    """Merge a trunk (N,) float32 and experts (M,) float32, given by their numbers, into one model.

    Args:
        samples: for each expert (B, T) int64, tokens of its own documents, from which its routers' rows are made.

    Raises:
        LocalProtocolError: vectors whose length is not that of the run's units, or an expert without samples.
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
    """Router rows (X, D) from each expert's mean input: its difference from the mean of all experts.

    There is no bias, so a row must have no component that all tokens share: it would prefer an expert for every token. All rows
    have length one: longer rows would prefer the experts whose documents are far from the mean.
    """
    shared_D = means_XD.mean(0)
    away_XD = means_XD - shared_D
    away_XD = away_XD - (away_XD @ shared_D)[:, None] * shared_D / shared_D.square().sum().clamp_min(1e-12)
    rows_XD: torch.Tensor = away_XD / away_XD.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return rows_XD


@torch.no_grad()
def _mean_inputs(model: MixtureDecoder, tokens_BT: torch.Tensor, expert: int) -> list[torch.Tensor]:
    """The mean input (D,) of each layer's experts over an expert's own documents."""
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
    """Train only the routers, with AdamW, one step per batch (B, T) int64. Returns the last loss in nats per token, NaN without a
    batch.

    A token passes at least two experts during tuning, even if it will pass one later. With a single expert its gate is 1 whatever
    the router says, so the loss would not train the routers. Training by the balance loss alone makes a merged model worse.
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
    """Remove one expert from a merged model. Results for tokens that were never sent to it stay the same, bit for bit.

    Raises:
        LocalProtocolError: it does not hold that expert, or too few others: none, or fewer than a token is sent to.
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
