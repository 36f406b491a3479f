"""The units of a model that a run averages, and their places in the flat vector of the training process.

A run averages the whole model at once, or, streaming, in fragments (Streaming DiLoCo, 2501.18512, section 3.1): layer i is in
fragment i modulo their number. The embeddings and all other tensors outside the layers are one more unit. The units lie one after
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
"""The unit of all tensors outside the layers: embeddings, the last norm, the head."""

LAYERS_A_FRAGMENT: Final = 3
"""As in the paper: fewer layers mean more rounds for the same bytes, more layers mean longer rounds."""


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
        """The index of this unit.

        Raises:
            LocalProtocolError: none of them.
        """
        for place, schema in enumerate(self.schemas):
            if schema.unit == unit:
                return place
        raise LocalProtocolError(f"unit {unit}", f"one of {[schema.unit for schema in self.schemas]}")


def model_units(config: ModelConfig, num_fragments: int = 0) -> ModelUnits:
    """The units of a model: with 0 fragments the whole model as one, else `num_fragments` fragments and the embeddings."""
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
