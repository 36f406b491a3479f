"""The bundled decoder with experts beside each layer's feed-forward, as trained by one peer and as merged of all.

While experts are trained each document has one, and a peer materialises those that it holds: a layer adds its own feed-forward and
that of the document's expert to the stream. The merged model is an ordinary sparse mixture: a router in each layer chooses top_k
experts a token, softmax over the logits of those chosen (Mixtral, 2401.04088, section 2.1), beside the shared feed-forward
(DeepSeekMoE, 2401.06066, section 3.2). Where every token is sent to one expert it is that expert's own model, to the rounding of one
product.

Shapes: as peer/models/decoder.py; X experts, F inner values of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from peer.models.decoder import Layer, Norm, rotation_table
from protocol.errors import LocalProtocolError
from protocol.tensors.decoder_schema import DecoderConfig
from protocol.tensors.expert_schema import MixtureConfig


class Expert(nn.Module):
    """One expert's feed-forward in one layer: SwiGLU."""

    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.w_gate = nn.Linear(dim, ffn_dim, bias=False)
        self.w_up = nn.Linear(dim, ffn_dim, bias=False)
        self.w_down = nn.Linear(ffn_dim, dim, bias=False)

    def forward(self, y_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        fed: torch.Tensor = self.w_down(functional.silu(self.w_gate(y_BTD)) * self.w_up(y_BTD))
        return fed


class Router(nn.Module):
    """A row for each expert, (X, D): how much a token is its."""

    def __init__(self, num_experts: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_experts, dim))

    def forward(self, y_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to logits (B, T, X)."""
        return functional.linear(y_BTD, self.weight)


@dataclass(frozen=True, slots=True)
class Routed:
    """What a layer's router chose, for its losses: logits (B, T, X), and for each expert how many tokens were sent to it (X,)."""

    logits_BTX: torch.Tensor
    sent_X: torch.Tensor

    def gates(self, top_k: int) -> torch.Tensor:
        """(B, T, X): how much of each token each expert has, 0 where it was not chosen; a token's sum to 1."""
        return gates_of(self.logits_BTX, top_k)


def gates_of(logits_BTX: torch.Tensor, top_k: int) -> torch.Tensor:
    """Softmax over the logits of the top_k experts of each token, (B, T, X) of the logits' type; 0 for all others."""
    chosen_BTK, places_BTK = logits_BTX.topk(top_k, dim=-1)
    return torch.zeros_like(logits_BTX).scatter(-1, places_BTK, chosen_BTK.float().softmax(-1).to(logits_BTX.dtype))


class MixtureLayer(Layer):
    """The decoder's layer with experts beside its feed-forward. `router` is there in a merged model alone."""

    def __init__(
        self, config: DecoderConfig, mixture: MixtureConfig, experts: Sequence[int], *, is_merged: bool
    ) -> None:
        super().__init__(config)
        self._top_k = mixture.top_k
        self.experts = nn.ModuleDict({str(expert): Expert(config.dim, mixture.ffn_dim) for expert in sorted(experts)})
        self.router = Router(len(experts), config.dim) if is_merged else None

    def mix(
        self, x_BTD: torch.Tensor, table: torch.Tensor, expert: int | None, top_k: int | None = None
    ) -> tuple[torch.Tensor, Routed | None]:
        """(B, T, D) to (B, T, D), causal; through one expert, or through those that the router chooses where `expert` is None, as many
        as the model says or `top_k`.
        """
        x_BTD = x_BTD + self.attend(self.attn_norm(x_BTD), table)
        y_BTD = self.ffn_norm(x_BTD)
        shared = self.feed(y_BTD)
        if expert is not None:
            return x_BTD + (shared + self.experts[str(expert)](y_BTD)), None
        if self.router is None:
            raise LocalProtocolError("a model that is not merged, without an expert", "the expert of the documents")
        logits_BTX: torch.Tensor = self.router(y_BTD)
        shares_BTX = gates_of(logits_BTX, top_k or self._top_k)
        mixed = shared
        for place, module in enumerate(self.experts.values()):
            # Every expert looks at every token, and what was not sent to it counts 0: so a token's values do not hang on which other
            # tokens an expert has, and an expert that is taken out changes nothing for those that it never had.
            mixed = mixed + shares_BTX[..., place : place + 1] * module(y_BTD)
        sent_X = (shares_BTX > 0).flatten(0, 1).sum(0)
        return x_BTD + mixed, Routed(logits_BTX, sent_X)


class MixtureDecoder(nn.Module):
    """Tokens to logits, with some experts of a run, or, merged, with all of them and a router.

    Its parameters have the names of protocol/tensors/expert_schema.py, and in a merged model `layers.N.router.weight` (X, D) beside
    them.
    """

    def __init__(
        self, config: DecoderConfig, mixture: MixtureConfig, experts: Sequence[int], *, is_merged: bool = False
    ) -> None:
        super().__init__()
        self.config, self.mixture = config, mixture
        self.experts = tuple(sorted(experts))
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(
            MixtureLayer(config, mixture, experts, is_merged=is_merged) for _ in range(config.num_layers)
        )
        self.norm = Norm(config.dim, config.norm_eps)
        self.head = None if config.is_tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer("rotation", rotation_table(config), persistent=False)
        self.rotation: torch.Tensor

    def forward(self, tokens_BT: torch.Tensor, expert: int | None = None) -> torch.Tensor:
        """(B, T) int64 to (B, T, V) logits: of documents of one expert, or of a merged model's own choice.

        Raises:
            LocalProtocolError: no expert is named and the model has no router.
        """
        return self.routed(tokens_BT, expert)[0]

    def routed(
        self, tokens_BT: torch.Tensor, expert: int | None = None, top_k: int | None = None
    ) -> tuple[torch.Tensor, list[Routed]]:
        """As `forward`, and what each layer's router chose; with `top_k`, so many experts a token instead of the model's number."""
        x_BTD, chosen = self.embed(tokens_BT), []
        for layer in self.layers:
            if not isinstance(layer, MixtureLayer):
                raise LocalProtocolError(f"a layer of kind {type(layer).__name__}", "a layer with experts")
            x_BTD, routed = layer.mix(x_BTD, self.rotation, expert, top_k)
            if routed is not None:
                chosen.append(routed)
        weight = self.embed.weight if self.head is None else self.head.weight
        return functional.linear(self.norm(x_BTD), weight), chosen


def balance_loss(chosen: Sequence[Routed], top_k: int) -> torch.Tensor:
    """Mean over layers of X times the sum of each expert's share of tokens times its mean probability (Switch Transformer,
    2101.03961, equation 4): 1 where all experts have as many. A scalar.
    """
    losses = []
    for routed in chosen:
        num_experts = routed.logits_BTX.shape[-1]
        shares_X = routed.sent_X / (top_k * routed.logits_BTX[..., 0].numel())
        likely_X = routed.logits_BTX.float().softmax(-1).flatten(0, 1).mean(0)
        losses.append(num_experts * (shares_X * likely_X).sum())
    return torch.stack(losses).mean()


def router_z_loss(chosen: Sequence[Routed]) -> torch.Tensor:
    """Mean over layers and tokens of the squared log-sum-exp of the router's logits (ST-MoE, 2202.08906, equation 5). A scalar."""
    return torch.stack([routed.logits_BTX.float().logsumexp(-1).square().mean() for routed in chosen]).mean()
