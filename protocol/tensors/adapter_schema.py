"""A run's adapter: two small matrices beside matrices of each layer, without any tensor library (LoRA, 2106.09685, section 4.1).

The model's own weights are frozen. An adapted matrix W (out, in) computes W x + alpha / rank * B A x, with A (rank, in) and B (out,
rank). A and B of all adapted matrices are the one unit of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

ADAPTER: Final = UnitName("adapter")
"""The one unit of a run with an adapter."""

MAX_RANK: Final = 4096

Rank = Annotated[int, Field(ge=1, le=MAX_RANK)]
Alpha = Annotated[float, Field(gt=0.0, le=1e6)]


BaseType = Literal["bf16", "int8"]
"""How the matrices of the base's layers are held while it trains."""

BFLOAT16_BYTES: Final = 2
INT8_BYTES: Final = 1
SCALE_BYTES: Final = 4
"""Bytes of a value in either type, and of the factor of each row in 8 bits."""


class AdapterConfig(BaseModel):
    """The numbers of an adapter.

    Attributes:
        rank: rows of A and columns of B.
        alpha: the adapter's output is multiplied by alpha / rank.
        targets: the adapted matrices of each layer, by the names that published checkpoints have for them; all if empty.
        base: the type of the base's matrices within layers. All else is bfloat16.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Rank
    alpha: Alpha
    targets: tuple[str, ...] = ()
    base: BaseType = "bf16"

    @property
    def scale(self) -> float:
        """The factor of the adapter's output."""
        return self.alpha / self.rank

    def parts(self, model: ModelConfig) -> tuple[str, ...]:
        """The adapted matrices of each layer, as the model's tensors name them, in the model's order.

        Raises:
            LocalProtocolError: a target that the model lacks.
        """
        if unknown := set(self.targets) - set(model.linears):
            raise LocalProtocolError(
                f"an adapter of {min(unknown)}", f"matrices of family {model.family}: {', '.join(model.linears)}"
            )
        return tuple(part for name, part in model.linears.items() if not self.targets or name in self.targets)


def target_shapes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Rows and columns of the matrices that an adapter may change, by their published names. All layers have the same."""
    shapes = {spec.name: spec.shape for spec in model.tensors() if spec.name.startswith("layers.0.")}
    found = {name: shapes[f"layers.0.{part}.weight"] for name, part in model.linears.items()}
    return {name: (rows, columns) for name, (rows, columns) in found.items()}


def adapter_schema(model: ModelConfig, adapter: AdapterConfig) -> TensorSchema:
    """The adapter's tensors, layer after layer, A before B. A begins as noise and B as zeros, so the first outputs are the base's.

    Raises:
        LocalProtocolError: a target that the model lacks.
    """
    shapes = target_shapes(model)
    by_part = {part: shapes[name] for name, part in model.linears.items()}
    specs: list[TensorSpec] = []
    for layer in range(model.num_layers):
        for part in adapter.parts(model):
            (rows, columns), name = by_part[part], f"layers.{layer}.{part}"
            specs += [
                TensorSpec(f"{name}.lora_A.weight", (adapter.rank, columns), "fan_in"),
                TensorSpec(f"{name}.lora_B.weight", (rows, adapter.rank), "zeros"),
            ]
    return TensorSchema(ADAPTER, tuple(specs))


def base_bytes(model: ModelConfig, adapter: AdapterConfig) -> int:
    """Bytes of the base in a training process or on its card."""
    num_values = sum(spec.num_elements for spec in model.tensors())
    if adapter.base == "bf16":
        return BFLOAT16_BYTES * num_values
    shapes = target_shapes(model).values()
    inside = model.num_layers * sum(rows * columns for rows, columns in shapes)
    scales = model.num_layers * sum(rows for rows, _ in shapes)
    return BFLOAT16_BYTES * (num_values - inside) + INT8_BYTES * inside + SCALE_BYTES * scales


def adapter_problem(model: ModelConfig, rank: int, targets: Sequence[str]) -> str:
    """The first number of an adapter that cannot work with a model, with what would; "" if all fit."""
    shapes = target_shapes(model)
    for name in targets:
        if name not in shapes:
            return (
                f'adapter.targets has "{name}", which no layer of the model has: expected some of {", ".join(shapes)}'
            )
    if len(set(targets)) != len(targets):
        return f"adapter.targets {', '.join(targets)}: expected each once"
    name, most = min(((name, min(shapes[name])) for name in targets or shapes), key=lambda item: item[1])
    if rank > most:
        return f"adapter.rank {rank} with {name} of {' x '.join(map(str, shapes[name]))}: expected at most {most}"
    return ""
