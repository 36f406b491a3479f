"""A model of any family in torch: the forward pass, and the flat vector of its parameters.

A family provides the blocks (averaging/models/family.py). They are put together here to a whole model, or to the part of a stage.
The parameters have the names and shapes of the config's `tensors`.

Shapes: B sequences, T tokens, D values, V vocabulary, N values of all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from averaging.models.attention import Documents
from averaging.models.family import LayerCall, blocks_of, call_layer, run_layers
from peer.models.chunked_loss import chunked_cross_entropy
from peer.models.frozen_linear import product
from peer.models.likelihood import likeliest_of_marked, sums_of_marked
from protocol.errors import LocalProtocolError
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.tensor_schema import TensorSchema


def in_compute_type(x: torch.Tensor) -> torch.Tensor:
    """Values in the type that autocast computes products in; as they are where autocast is off."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


@dataclass(frozen=True, slots=True)
class LossMarks:
    """The facts about the tokens of a batch beside their numbers.

    Attributes:
        num_counted: as of `chunked_cross_entropy`; None if all tokens count.
        documents: those that must not see each other; None if all tokens of a sequence do.
    """

    num_counted: int | None = None
    documents: Documents | None = None


ALL_COUNT: Final = LossMarks()


class Spine(nn.Module):
    """Embedding, layers, last norm and head; a stage has some of them. All models here run through this class.

    Args:
        layers: makes the layers, as a list or by their numbers as text.
        is_first: with the embedding, before the layers.
        is_last: with norm and head, after the layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Callable[[], nn.ModuleList | nn.ModuleDict],
        *,
        is_first: bool = True,
        is_last: bool = True,
    ) -> None:
        super().__init__()
        blocks = blocks_of(config)
        self.config = config
        self.call: LayerCall = call_layer
        """How each layer is run. A replica may set another one, which keeps less for the backward pass or is compiled."""

        self.embed = blocks.embed(config) if is_first else None
        self.layers = layers()
        self.norm = blocks.norm(config) if is_last else None
        has_head = is_last and not config.is_tied
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False) if has_head else None
        self.register_buffer("table", blocks.table(config), persistent=False)
        self.table: torch.Tensor

    def run(self, arrived: torch.Tensor, *shared: object) -> torch.Tensor:
        """Tokens (B, T) int64, or (B, T, D) without an embedding, to logits (B, T, V), or (B, T, D) without a head.

        Args:
            shared: passed to each layer in addition to the stream and the family's table.
        """
        y_BTD = self.hidden(arrived, *shared)
        return y_BTD if self.head_weight is None else product(y_BTD, self.head_weight)

    def loss_of(
        self, arrived: torch.Tensor, targets_BT: torch.Tensor, *shared: object, marks: LossMarks = ALL_COUNT
    ) -> torch.Tensor:
        """Like `run`, to the mean cross-entropy with the next tokens, in nats: a scalar. The logits never exist all together.

        Args:
            shared: as of `run`, with the batch's documents if there are some.
            marks: which tokens count.

        Raises:
            LocalProtocolError: a stage without the head.
        """
        if self.head_weight is None:
            raise LocalProtocolError("a loss of a stage without head", "one of the last stage")
        x_BTD = self.hidden(arrived, *shared)
        return chunked_cross_entropy(x_BTD, self.head_weight, targets_BT, num_counted=marks.num_counted)

    def hidden(self, arrived: torch.Tensor, *shared: object) -> torch.Tensor:
        """Like `run`, without the head: (B, T, D). Under autocast the stream has autocast's type from its first value on."""
        x_BTD = arrived if self.embed is None else self.embed(arrived)
        table = next((each.rows_of(self.table) for each in shared if isinstance(each, Documents)), self.table)
        x_BTD = run_layers(self.layers_in_order(), in_compute_type(x_BTD), table, *shared, call=self.call)
        return x_BTD if self.norm is None else self.norm(x_BTD)

    @property
    def head_weight(self) -> torch.Tensor | None:
        """The head's weight, the embedding's where they are tied; None for a stage without it."""
        last = self.embed if self.head is None and self.norm is not None else self.head
        return None if last is None else last.weight

    def layers_in_order(self) -> Iterable[nn.Module]:
        """The layers, in the order in which the stream passes them."""
        return self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers


class Decoder(Spine):
    """Tokens to logits."""

    def __init__(self, config: ModelConfig) -> None:
        make = blocks_of(config).layer
        super().__init__(config, lambda: nn.ModuleList(make(config, number) for number in range(config.num_layers)))

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """(B, T) int64 to (B, T, V) logits."""
        return self.run(tokens_BT)

    def loss(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, marks: LossMarks = ALL_COUNT) -> torch.Tensor:
        """Mean cross-entropy of (B, T) int64 tokens with the next ones, in nats: a scalar."""
        if marks.documents is None:
            return self.loss_of(tokens_BT, targets_BT, marks=marks)
        return self.loss_of(tokens_BT, targets_BT, None, marks.documents, marks=marks)

    def log_likelihoods(
        self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor, marked_BT: torch.Tensor
    ) -> torch.Tensor:
        """(B,) float64: the log-likelihood of the next tokens (B, T) int64 at the marked places (B, T), summed for each sequence."""
        return sums_of_marked(self.hidden(tokens_BT), self._whole_head(), targets_BT, marked_BT)

    def likeliest(self, tokens_BT: torch.Tensor, marked_BT: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """(B,) int64: the likeliest token below `vocab_size` after the one marked place of each sequence; 0 where none is marked."""
        return likeliest_of_marked(self.hidden(tokens_BT), self._whole_head(), marked_BT, vocab_size)

    def _whole_head(self) -> torch.Tensor:
        if self.head_weight is None:
            raise LocalProtocolError("a model without head", "a whole one")
        return self.head_weight


def parameters_in_order(model: nn.Module, schema: TensorSchema) -> list[nn.Parameter]:
    """The model's parameters in the schema's order.

    Raises:
        LocalProtocolError: the model and the schema disagree.
    """
    named = dict(model.named_parameters())
    if set(named) != {spec.name for spec in schema.tensors}:
        raise LocalProtocolError(f"model parameters {sorted(named)}", "those of the schema")
    ordered = [named[spec.name] for spec in schema.tensors]
    for spec, parameter in zip(schema.tensors, ordered, strict=True):
        if tuple(parameter.shape) != spec.shape:
            raise LocalProtocolError(f"{spec.name} of shape {tuple(parameter.shape)}", f"{spec.shape}")
    return ordered


def parts_of(flat_N: torch.Tensor, schema: TensorSchema) -> list[torch.Tensor]:
    """Views of a (N,) vector, one of each tensor's shape, in the schema's order.

    Raises:
        LocalProtocolError: the vector has another length than the schema.
    """
    if flat_N.numel() != schema.num_elements:
        raise LocalProtocolError(f"a vector of {flat_N.numel()} values", f"{schema.num_elements}")
    parts = torch.split(flat_N, [spec.num_elements for spec in schema.tensors])
    return [part.view(spec.shape) for part, spec in zip(parts, schema.tensors, strict=True)]


def load_flat(model: nn.Module, schema: TensorSchema, flat_N: torch.Tensor) -> None:
    """Set all parameters from a (N,) float32 vector. Raises as `parts_of`."""
    with torch.no_grad():
        for parameter, part in zip(parameters_in_order(model, schema), parts_of(flat_N, schema), strict=True):
            parameter.copy_(part)
