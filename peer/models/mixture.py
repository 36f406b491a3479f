"""The Llama decoder with experts added to each layer's feed-forward, as one peer trains it and as merged from all.

In training, each document has one expert, and a peer has the experts that it holds. A layer adds its own feed-forward and that of
the document's expert to the stream. The merged model is an ordinary sparse mixture. A router in each layer chooses top_k experts
per token, with softmax over their logits (Mixtral, 2401.04088, section 2.1), in addition to the shared feed-forward (DeepSeekMoE,
2401.06066, section 3.2). If every token is sent to one expert, it equals that expert's own model, up to the rounding of one
product.

Shapes: as peer/models/decoder.py; X experts, F inner values of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn import functional

from averaging.models.attention import Documents
from averaging.models.family import Drop
from averaging.models.llama.blocks import Layer
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import ALL_COUNT, LossMarks, Spine
from protocol.errors import LocalProtocolError
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
    """One row for each expert, (X, D): how well a token fits it."""

    def __init__(self, num_experts: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_experts, dim))

    def forward(self, y_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to logits (B, T, X)."""
        return functional.linear(y_BTD, self.weight)


@dataclass(frozen=True, slots=True)
class Routed:
    """A layer router's choice, for its losses: logits (B, T, X), and the number of tokens sent to each expert (X,)."""

    logits_BTX: torch.Tensor
    sent_X: torch.Tensor

    def gates(self, top_k: int) -> torch.Tensor:
        """(B, T, X): the weight of each expert for each token, 0 if it was not chosen. The weights of a token sum to 1."""
        return gates_of(self.logits_BTX, top_k)


def gates_of(logits_BTX: torch.Tensor, top_k: int) -> torch.Tensor:
    """Softmax over the logits of the top_k experts of each token, (B, T, X) of the logits' type; 0 for all others."""
    chosen_BTK, places_BTK = logits_BTX.topk(top_k, dim=-1)
    return torch.zeros_like(logits_BTX).scatter(-1, places_BTK, chosen_BTK.float().softmax(-1).to(logits_BTX.dtype))


@dataclass(frozen=True, slots=True)
class Routing:
    """How one pass goes through the experts, and the choices of its routers.

    Attributes:
        expert: the expert of all tokens; None to let each layer's router choose.
        top_k: number of experts per token if routers choose, None for the model's number.
        chosen: each layer router's choice, in order; empty with an `expert`.
    """

    expert: int | None = None
    top_k: int | None = None
    chosen: list[Routed] = field(default_factory=list)

    def copy_for_repeat(self) -> Routing:
        """The same routing with a list of its own, so that a layer that runs again adds no choice twice."""
        return replace(self, chosen=[])


class MixtureLayer(Layer):
    """The decoder's layer with experts added to its feed-forward. Only a merged model has a `router`."""

    def __init__(self, config: LlamaConfig, mixture: MixtureConfig, experts: Sequence[int], *, is_merged: bool) -> None:
        super().__init__(config)
        self._top_k = mixture.top_k
        self.experts = nn.ModuleDict({str(expert): Expert(config.dim, mixture.ffn_dim) for expert in sorted(experts)})
        self.router = Router(len(experts), config.dim) if is_merged else None

    def forward(
        self,
        x_BTD: torch.Tensor,
        table: torch.Tensor,
        drop: Drop | None = None,
        documents: Documents | None = None,
        routing: Routing | None = None,
    ) -> torch.Tensor:
        """(B, T, D) to (B, T, D), causal. Without a `routing` the router chooses.

        Raises:
            LocalProtocolError: dropout, which expert runs do not support, or no expert is given and the model has no router.
        """
        if drop is not None:
            raise LocalProtocolError("dropout in a layer with experts", "none")
        x_BTD = x_BTD + self.attend(self.attn_norm(x_BTD), table, documents)
        return x_BTD + self._mixed(self.ffn_norm(x_BTD), routing or Routing())

    def _mixed(self, y_BTD: torch.Tensor, routing: Routing) -> torch.Tensor:
        """The sum of the feed-forward and the experts, (B, T, D) to (B, T, D)."""
        shared = self.feed(y_BTD)
        if routing.expert is not None:
            own: torch.Tensor = self.experts[str(routing.expert)](y_BTD)
            return shared + own
        if self.router is None:
            raise LocalProtocolError("a model that is not merged, without an expert", "the expert of the documents")
        logits_BTX: torch.Tensor = self.router(y_BTD)
        shares_BTX = gates_of(logits_BTX, routing.top_k or self._top_k)
        mixed = shared
        for place, module in enumerate(self.experts.values()):
            # Every expert computes every token; tokens not sent to it count 0. So a token's values do not depend on the other tokens
            # of an expert, and removing an expert changes nothing for tokens that it never had.
            mixed = mixed + shares_BTX[..., place : place + 1] * module(y_BTD)
        routing.chosen.append(Routed(logits_BTX, (shares_BTX > 0).flatten(0, 1).sum(0)))
        return mixed


class MixtureDecoder(Spine):
    """Tokens to logits, with some experts of a run, or, merged, with all of them and a router.

    Its parameters have the names of protocol/tensors/expert_schema.py. A merged model also has `layers.N.router.weight` (X, D).
    """

    def __init__(
        self, config: LlamaConfig, mixture: MixtureConfig, experts: Sequence[int], *, is_merged: bool = False
    ) -> None:
        def layer() -> MixtureLayer:
            return MixtureLayer(config, mixture, experts, is_merged=is_merged)

        super().__init__(config, lambda: nn.ModuleList(layer() for _ in range(config.num_layers)))
        self.llama, self.mixture = config, mixture
        self.experts = tuple(sorted(experts))

    def forward(self, tokens_BT: torch.Tensor, expert: int | None = None) -> torch.Tensor:
        """(B, T) int64 to (B, T, V) logits, for documents of one expert, or by a merged model's routers.

        Raises:
            LocalProtocolError: no expert is given and the model has no router.
        """
        return self.routed(tokens_BT, expert)[0]

    def loss(
        self,
        tokens_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        expert: int | None = None,
        marks: LossMarks = ALL_COUNT,
    ) -> torch.Tensor:
        """Mean cross-entropy of (B, T) int64 tokens with the next ones, in nats: a scalar. Raises as `forward`."""
        return self.loss_of(tokens_BT, targets_BT, None, marks.documents, Routing(expert), marks=marks)

    def routed(
        self, tokens_BT: torch.Tensor, expert: int | None = None, top_k: int | None = None
    ) -> tuple[torch.Tensor, list[Routed]]:
        """Like `forward`, and each layer router's choice. `top_k` overrides the model's number of experts per token."""
        routing = Routing(expert, top_k)
        return self.run(tokens_BT, None, None, routing), routing.chosen


def balance_loss(chosen: Sequence[Routed], top_k: int) -> torch.Tensor:
    """Mean over layers of X times the sum of each expert's share of tokens times its mean probability (Switch Transformer,
    2101.03961, equation 4). It is 1 if all experts have the same share. A scalar.
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
