"""The interface of a model family beside its config: the blocks that its models are built from, and the layout of its
checkpoints.

A family's folder has `config.py` (protocol/tensors/model_families.py), `blocks.py` with `BLOCKS`, and `layout.py` with `LAYOUT`.
Potluck builds whole models, stages and mixtures from the blocks (peer/models/decoder.py), and reads and writes checkpoints by the
layout (coordinator/checkpoints/).

Shapes: B sequences, T tokens, D values, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

from protocol.errors import ConfigError, LocalProtocolError
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.model_families import FAMILIES

if TYPE_CHECKING:
    import torch
    from torch import nn

C_contra = TypeVar("C_contra", bound=ModelConfig, contravariant=True)

Drop = Callable[["torch.Tensor"], "torch.Tensor"]
"""Applies dropout to (B, T, D) values that a layer is about to add to the stream."""


Split = Literal["rows", "columns"]
"""Which part of its matrix each of several processes has. Rows: the input is whole and each makes a part of the output. Columns: each
has a part of the input, and the outputs are added up.
"""


Used = Callable[["torch.Tensor"], "torch.Tensor"]
"""Gives a parameter of any shape as a pass uses it: the same values, of which a replica may treat the gradient."""


@runtime_checkable
class SharedWeight(Protocol):
    """A module whose weight all processes have as a whole, although each applies it to its own part of a layer."""

    used: Used


class LayerCache:
    """Keys and values of the tokens that one layer has seen: (B, K, T, E) each, in the layer's own layout."""

    def __init__(self) -> None:
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens seen so far."""
        return 0 if self._seen is None else int(self._seen[0].shape[2])

    def extended(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of further tokens. Returns all of them.

        Raises:
            LocalProtocolError: several tokens after others, which would need a mask.
        """
        import torch

        if self._seen is None:
            self._seen = keys, values
            return self._seen
        if keys.shape[2] != 1:
            raise LocalProtocolError(f"{keys.shape[2]} tokens after cached ones", "one")
        self._seen = torch.cat((self._seen[0], keys), dim=2), torch.cat((self._seen[1], values), dim=2)
        return self._seen


@runtime_checkable
class CachedLayer(Protocol):
    """A layer that can go on after tokens that it has seen. A family's layers need not be such ones; text is then generated slowly."""

    def extend(self, x_BTD: torch.Tensor, table: torch.Tensor, cache: LayerCache, /) -> torch.Tensor:
        """(B, T, D) of the tokens after those in the cache, to (B, T, D). After the first call T is 1."""
        ...


class LayerCall(Protocol):
    """Runs one layer: `call_layer`, or another that gives the same result."""

    def __call__(self, layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
        """(B, T, D) to (B, T, D), with the values that all layers share."""
        ...


@runtime_checkable
class Repeatable(Protocol):
    """A shared value that a layer's run changes. A layer that runs a second time, in its backward pass, gets a copy of it as it was
    before the first run.
    """

    def copy_for_repeat(self) -> Self:
        """A copy in the same state. Changes of it have no effect on the original."""
        ...


@dataclass(frozen=True, slots=True)
class Blocks(Generic[C_contra]):
    """The modules of a family. Their parameters have the names and shapes of its config's `tensors`.

    Attributes:
        embed: tokens (B, T) int64 to (B, T, D). Its `weight` is the table (V, D). It is also the head if the model is tied.
        layer: makes one layer, by its number. Its forward takes (B, T, D), `table` and optionally a `Drop`. It passes everything
            that it adds to the stream through the `Drop`, in a fixed order. It returns (B, T, D), causal.
        norm: makes the last norm, (B, T, D) to (B, T, D).
        table: constants that all layers share, such as rotations of positions: a row for each position. Empty if a family has none.
        splits: linear modules of a layer that several processes can share, by the last part of their names. Empty if they cannot
            share a layer.
        split_inputs: modules of a layer whose result goes into modules split by rows, and nowhere else.
        split_weights: `SharedWeight` modules, by the last part of their names, if a layer has them.
    """

    embed: Callable[[C_contra], nn.Embedding]
    layer: Callable[[C_contra, int], nn.Module]
    norm: Callable[[C_contra], nn.Module]
    table: Callable[[C_contra], torch.Tensor]
    splits: Mapping[str, Split] = field(default_factory=dict)
    split_inputs: tuple[str, ...] = ()
    split_weights: tuple[str, ...] = ()


class Layout(Protocol[C_contra]):
    """A family's checkpoints in the format of other programs. Shapes are the same on both sides; only names differ."""

    @property
    def model_type(self) -> str:
        """The family's name in the layout."""
        ...

    def name(self, tensor: str) -> str:
        """The layout's name of one of the family's tensors."""
        ...

    def config_json(self, config: C_contra, end: int | None = None) -> dict[str, object]:
        """The contents of config.json for a float32 model with this config. `end` is the token that ends a text."""
        ...

    def model_values(self, file: Path, found: Mapping[str, object]) -> dict[str, object]:
        """The values of run.toml's [model] that follow from the contents of a config.json: all keys but `context_tokens` and `family`.

        Args:
            file: its name in errors.
            found: its contents.

        Raises:
            ConfigError: a value that this family does not support, or that no model has.
        """
        ...

    def check_config_json(self, file: Path, found: Mapping[str, object], config: C_contra) -> None:
        """Reject a checkpoint of another model.

        Args:
            file: its name in errors.
            found: the contents of its config.json.

        Raises:
            ConfigError: its numbers differ from `config`, or this family does not support it.
        """
        ...

    def may_be_left_out(self, name: str, config: C_contra) -> bool:
        """Whether a tensor of the layout without a counterpart in ours is redundant: computed, or a second copy."""
        ...


def blocks_of(config: ModelConfig) -> Blocks[ModelConfig]:
    """The blocks of the model's family. Imports torch."""
    found: Blocks[ModelConfig] = import_module(f"averaging.models.{config.family}.blocks").BLOCKS
    return found


def layout_of(config: ModelConfig) -> Layout[ModelConfig]:
    """The layout of the model's family, without torch."""
    found: Layout[ModelConfig] = import_module(f"averaging.models.{config.family}.layout").LAYOUT
    return found


def family_of(file: Path, found: Mapping[str, object]) -> tuple[str, Layout[ModelConfig]]:
    """The family of the contents of a config.json, and its layout, without torch.

    Args:
        file: its name in errors.

    Raises:
        ConfigError: no family of this release.
    """
    layouts: dict[str, Layout[ModelConfig]] = {
        family: import_module(f"averaging.models.{family}.layout").LAYOUT for family in FAMILIES
    }
    kind = found.get("model_type")
    for family, layout in layouts.items():
        if layout.model_type == kind:
            return family, layout
    known = ", ".join(layout.model_type for layout in layouts.values())
    raise ConfigError(f"{file}: model_type is {kind!r}", f"one of {known}", "start from another checkpoint")


def call_layer(layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
    """Run (B, T, D) through one layer, called as a module, so that wrappers of modules see it."""
    y_BTD: torch.Tensor = layer(x_BTD, *shared)
    return y_BTD


def run_layers(
    layers: Iterable[nn.Module], x_BTD: torch.Tensor, *shared: object, call: LayerCall = call_layer
) -> torch.Tensor:
    """Run (B, T, D) through layer after layer, each with the shared values.

    Args:
        call: runs one layer. Another one may keep less for the backward pass, or compile.
    """
    for layer in layers:
        x_BTD = call(layer, x_BTD, *shared)
    return x_BTD
