"""What a model family gives beside its numbers: the blocks that a model of it is built from, and the layout that others load.

A family's folder has `config.py` (protocol/tensors/model_families.py), `blocks.py` with `BLOCKS`, and `layout.py` with `LAYOUT`. The
house builds whole models, stages and mixtures from the blocks (peer/models/decoder.py), and reads and writes checkpoints by the layout
(coordinator/checkpoints/).

Shapes: B sequences, T tokens, D values, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from protocol.tensors.model_config import ModelConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

C_contra = TypeVar("C_contra", bound=ModelConfig, contravariant=True)

Drop = Callable[["torch.Tensor"], "torch.Tensor"]
"""What dropout leaves of (B, T, D) values that a layer is about to add to the stream."""


@dataclass(frozen=True, slots=True)
class Blocks(Generic[C_contra]):
    """The modules of a family, whose parameters have the names and shapes of its config's `tensors`.

    Attributes:
        embed: tokens (B, T) int64 to (B, T, D). Its `weight` is the table (V, D), which is the head, too, where the model is tied.
        layer: one layer, by its number. Its forward takes (B, T, D), `table` and optionally a `Drop`, which all that it adds to the
            stream passes, in a fixed order; it gives (B, T, D), causal.
        norm: the last one, (B, T, D) to (B, T, D).
        table: what all layers share and nothing learns, as rotations of positions; empty where a family has no such thing.
    """

    embed: Callable[[C_contra], nn.Embedding]
    layer: Callable[[C_contra, int], nn.Module]
    norm: Callable[[C_contra], nn.Module]
    table: Callable[[C_contra], torch.Tensor]


class Layout(Protocol[C_contra]):
    """A family's checkpoints as other programs have them. Shapes are the same on both sides: only names differ."""

    def name(self, tensor: str) -> str:
        """The layout's name of one of the family's tensors."""
        ...

    def config_json(self, config: C_contra, end: int | None = None) -> dict[str, object]:
        """What config.json says of a float32 model with these numbers, and of `end`, the token that ends a text."""
        ...

    def check_config_json(self, file: Path, found: Mapping[str, object], config: C_contra) -> None:
        """Refuse a checkpoint of another model.

        Args:
            file: for what is said.
            found: what its config.json says.

        Raises:
            ConfigError: it says other numbers than `config`, or what this family cannot be.
        """
        ...

    def may_be_left_out(self, name: str, config: C_contra) -> bool:
        """Whether a tensor of the layout that no tensor of ours is stands for nothing more: one that is computed, or a second copy."""
        ...


def blocks_of(config: ModelConfig) -> Blocks[ModelConfig]:
    """The blocks of the model's family. Imports torch."""
    found: Blocks[ModelConfig] = import_module(f"averaging.models.{config.family}.blocks").BLOCKS
    return found


def layout_of(config: ModelConfig) -> Layout[ModelConfig]:
    """The layout of the model's family, without torch."""
    found: Layout[ModelConfig] = import_module(f"averaging.models.{config.family}.layout").LAYOUT
    return found


def run_layers(layers: Iterable[nn.Module], x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
    """(B, T, D) through layer after layer. Each is called as a module, with what all of them share, so that what wraps or compiles
    modules sees every layer.
    """
    for layer in layers:
        x_BTD = layer(x_BTD, *shared)
    return x_BTD
