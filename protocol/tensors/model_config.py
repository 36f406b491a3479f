"""The numbers that every model family gives of a model, and the tensors that follow, without any tensor library.

A family is a folder of averaging/models/ (protocol/tensors/model_families.py names them all). Its `[model]` section is a
`ModelConfig`: stages, fragments, experts and estimates of memory and work ask it, and know nothing else about the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Final, Literal, Protocol, Self

from pydantic import Field

from protocol.errors import LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

WHOLE_MODEL: Final = UnitName("fragment-0")
"""The one unit of a run that averages the whole model at once."""

EMBEDDING: Final = "embed.weight"
"""The (vocab_size, dim) tensor that looks tokens up. Every family's first tensor, and its head where `is_tied`."""

Size = Annotated[int, Field(ge=1, le=1 << 20)]
NumLayers = Annotated[int, Field(ge=1, le=512)]

_LAYER: Final = "layers."


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Values a token of one layer's activations. All but `sums` are in the type that the layer computes in.

    Attributes:
        kept: that the layer keeps for its backward pass beside its input, with norms in one kernel.
        products: results of matrix products and of attention.
        compiled: that a compiler keeps beside the layer's input; it computes what lies between products again.
        sums: kept in float32: one for each norm and head.
        widest: of the widest activation between two products.
        normed: that norms take, of the stream and inside of the layer.
        split: of `kept`, those of which processes that share a layer have a part each; `split_products` of the other two.
        keys: keys and values together.
    """

    kept: int
    products: int
    compiled: int
    sums: int
    widest: int
    normed: int
    split: int = 0
    split_products: int = 0
    keys: int = 0


class ModelConfig(Protocol):
    """A model's numbers: the `[model]` section of its family. A frozen pydantic model.

    All families share these: `dim` values a token between layers, `num_layers` equal layers, `context_tokens` that the model sees
    at once. With `is_tied` the embedding is the head, too.
    """

    @property
    def family(self) -> str:
        """The family's folder in averaging/models/."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows; 257 is bytes and an end mark."""
        ...

    @property
    def dim(self) -> int:
        """Values a token between layers."""
        ...

    @property
    def num_layers(self) -> int:
        """Layers, all of one shape."""
        ...

    @property
    def context_tokens(self) -> int:
        """Tokens that the model sees at once."""
        ...

    @property
    def position_tokens(self) -> int:
        """Tokens of the longest text that the exported model says it reads."""
        ...

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is the head, too."""
        ...

    @property
    def attention_dim(self) -> int:
        """Values of all query heads of a token in one layer: attention multiplies each with every earlier token's, twice."""
        ...

    @property
    def attended_tokens(self) -> int:
        """Tokens that each token's attention multiplies with, as work is counted: all of the context, although causality hides half of
        it; less where attention looks back only so far.
        """
        ...

    @property
    def layer_kept_values(self) -> int:
        """Values a token that one layer keeps for its backward pass, in float32."""
        ...

    @property
    def layer_activations(self) -> LayerActivations:
        """Activations of one layer, by which a peer plans its card's memory."""
        ...

    @property
    def takes_experts(self) -> bool:
        """Whether experts can stand next to each layer's feed-forward (protocol/tensors/expert_schema.py)."""
        ...

    @property
    def linears(self) -> Mapping[str, str]:
        """The matrices of each layer that an adapter may change: the names that published checkpoints have for them, and ours
        within a layer, in the order of the tensors.
        """
        ...

    @property
    def split_counts(self) -> Mapping[str, int]:
        """Numbers that the processes must divide that share the products of each layer, by what they count. Empty if no layer of the
        family can be shared so.
        """
        ...

    @property
    def shares_contexts(self) -> bool:
        """Whether several processes can share the tokens of a sequence: tokens meet in a layer's attention alone, and positions come
        from a table.
        """
        ...

    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors in the order of the flat vector: EMBEDDING and other tensors before the layers, then `layers.N.*` of layer
        after layer. The last norm follows and, if not `is_tied`, `head.weight` (vocab_size, dim).
        """
        ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some numbers replaced, as pydantic has it: unchecked."""
        ...

    def model_dump(self, *, mode: Literal["json", "python"] | str = "python") -> dict[str, Any]:
        """The numbers by their keys in run.toml."""
        ...


def model_schema(config: ModelConfig, unit: UnitName = WHOLE_MODEL) -> TensorSchema:
    """Names and shapes of the model's tensors in the order of the unit's flat vector."""
    return TensorSchema(unit, config.tensors())


def layer_of(tensor: str) -> int | None:
    """The layer that a tensor of this name belongs to; None for one before or after the layers."""
    return int(tensor.split(".")[1]) if tensor.startswith(_LAYER) else None


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A model's tensors in three groups.

    Attributes:
        first: before the layers: the embedding, and positions where a family has them as a table.
        layers: of each layer.
        last: after the layers: the norm, and the head unless it is the embedding.
    """

    first: tuple[TensorSpec, ...]
    layers: tuple[tuple[TensorSpec, ...], ...]
    last: tuple[TensorSpec, ...]


def model_parts(config: ModelConfig) -> ModelParts:
    """The parts of a model, its tensors in their own order.

    Raises:
        LocalProtocolError: the family's tensors are not in the order that `ModelConfig.tensors` asks for.
    """
    specs = config.tensors()
    numbers = [layer_of(spec.name) for spec in specs]
    within = [place for place, number in enumerate(numbers) if number is not None]
    begin, stop = (within[0], within[-1] + 1) if within else (0, 0)
    each = tuple(tuple(layer) for _, layer in groupby(specs[begin:stop], lambda spec: layer_of(spec.name)))
    if specs[0].name != EMBEDDING or [layer_of(layer[0].name) for layer in each] != [*range(config.num_layers)]:
        raise LocalProtocolError(
            f"tensors of family {config.family} in the order {', '.join(spec.name for spec in specs)}",
            f"{EMBEDDING} first, then layer after layer, then the rest",
        )
    return ModelParts(specs[:begin], each, specs[stop:])


def num_values(specs: tuple[TensorSpec, ...]) -> int:
    """Values of these tensors together."""
    return sum(spec.num_elements for spec in specs)


def num_matrix_values(specs: tuple[TensorSpec, ...]) -> int:
    """Values of the matrices among these tensors: a token is multiplied with each once."""
    return sum(spec.num_elements for spec in specs if len(spec.shape) >= 2)
