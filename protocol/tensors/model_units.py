"""Which units of a model a run averages, and how they lie in the flat vector of the training process.

A run averages the whole model at once, or, streaming, in fragments (Streaming DiLoCo, 2501.18512, section 3.1): strided blocks, layer
i in fragment i modulo their number, and the embeddings with all else that is no layer in a unit of their own. The units lie one after
another in the training process's vector, so each is one piece of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from protocol.errors import LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.model_config import WHOLE_MODEL, ModelConfig, layer_of, model_schema
from protocol.tensors.tensor_schema import TensorSchema

EMBEDDINGS: Final = UnitName("embeddings")
"""The unit of what belongs to no layer: embeddings, the last norm, the head."""

LAYERS_A_FRAGMENT: Final = 3
"""As in the paper: fewer are more rounds for the same bytes, more are longer ones."""


def default_fragments(num_layers: int) -> int:
    """Fragments of about three layers each."""
    return max(1, round(num_layers / LAYERS_A_FRAGMENT))


@dataclass(frozen=True)
class ModelUnits:
    """The units of a model in the order of the flat vector, the spine first."""

    schemas: tuple[TensorSchema, ...]

    @cached_property
    def whole(self) -> TensorSchema:
        """The training process's flat vector: all units one after another."""
        if len(self.schemas) == 1:
            return self.schemas[0]
        return TensorSchema(WHOLE_MODEL, tuple(spec for schema in self.schemas for spec in schema.tensors))

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """[begin, stop) of each unit in the flat vector, in values."""
        stops = list(accumulate(schema.num_elements for schema in self.schemas))
        return tuple(zip([0, *stops], stops, strict=False))

    def place(self, unit: UnitName) -> int:
        """Which of the units this is.

        Raises:
            LocalProtocolError: none of them.
        """
        for place, schema in enumerate(self.schemas):
            if schema.unit == unit:
                return place
        raise LocalProtocolError(f"unit {unit}", f"one of {[schema.unit for schema in self.schemas]}")


def model_units(config: ModelConfig, num_fragments: int = 0) -> ModelUnits:
    """The units of a model: with 0 fragments the whole model as one, else so many fragments and the embeddings."""
    model = model_schema(config)
    if not num_fragments:
        return ModelUnits((model,))
    names = [UnitName(f"fragment-{number}") for number in range(num_fragments)]
    parts = {name: [spec for spec in model.tensors if _fragment(spec.name, num_fragments) == name] for name in names}
    parts[EMBEDDINGS] = [spec for spec in model.tensors if _fragment(spec.name, num_fragments) == EMBEDDINGS]
    return ModelUnits(tuple(TensorSchema(unit, tuple(specs)) for unit, specs in parts.items()))


def _fragment(tensor: str, num_fragments: int) -> UnitName:
    layer = layer_of(tensor)
    return EMBEDDINGS if layer is None else UnitName(f"fragment-{layer % num_fragments}")
