"""An expert run's numbers, its units, and the tensors of each, without any tensor library.

Every layer's feed-forward is a mixture. All tokens pass the decoder's own, which all peers hold. Next to it are experts, of which a
peer holds one or two. All peers hold the unit "trunk": the model as a run without experts has it. An expert is a unit, too, with
its feed-forward in every layer: a document goes to one expert in all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.errors import ConfigError, LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.model_config import ModelConfig, Size, model_schema
from protocol.tensors.model_units import ModelUnits
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

TRUNK: Final = UnitName("trunk")
"""The spine of an expert run."""

MAX_EXPERTS: Final = 256
_PREFIX: Final = "expert-"


class MixtureConfig(BaseModel):
    """How many experts a run has, and how wide each is.

    Attributes:
        num_experts: of the run.
        ffn_dim: inner width of an expert's feed-forward.
        top_k: experts that a token passes in the merged model. In training it passes only its document's own expert.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    num_experts: Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
    ffn_dim: Size
    top_k: Annotated[int, Field(ge=1, le=MAX_EXPERTS)] = 1

    @model_validator(mode="after")
    def _check_top_k(self) -> MixtureConfig:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} of {self.num_experts} experts: expected at most {self.num_experts}")
        return self


def expert_unit(expert: int) -> UnitName:
    """The unit of an expert."""
    return UnitName(f"{_PREFIX}{expert}")


def expert_of(unit: UnitName, config: MixtureConfig) -> int | None:
    """The expert's number of a unit, None for the trunk.

    Raises:
        ConfigError: the run lacks this unit.
    """
    if unit == TRUNK:
        return None
    number = unit.removeprefix(_PREFIX)
    if (
        number.isascii()
        and number.isdecimal()
        and unit == expert_unit(int(number))
        and int(number) < config.num_experts
    ):
        return int(number)
    raise ConfigError(f"unit {unit!r}", f"{TRUNK} or {_PREFIX}0 to {_PREFIX}{config.num_experts - 1}")


def trunk_schema(decoder: ModelConfig) -> TensorSchema:
    """The tensors that every peer of an expert run holds."""
    return model_schema(decoder, TRUNK)


def expert_schema(decoder: ModelConfig, config: MixtureConfig, expert: int) -> TensorSchema:
    """One expert's tensors, layer after layer, by the names that they have in peer/models/mixture.py.

    Raises:
        LocalProtocolError: the run lacks this expert.
    """
    if not 0 <= expert < config.num_experts:
        raise LocalProtocolError(f"expert {expert}", f"0 to {config.num_experts - 1}")
    specs: list[TensorSpec] = []
    for layer in range(decoder.num_layers):
        name = f"layers.{layer}.experts.{expert}"
        specs += [
            TensorSpec(f"{name}.w_gate.weight", (config.ffn_dim, decoder.dim)),
            TensorSpec(f"{name}.w_up.weight", (config.ffn_dim, decoder.dim)),
            TensorSpec(f"{name}.w_down.weight", (decoder.dim, config.ffn_dim), "residual"),
        ]
    return TensorSchema(expert_unit(expert), tuple(specs))


def held_units(decoder: ModelConfig, config: MixtureConfig, experts: Sequence[int]) -> ModelUnits:
    """The units of a peer that holds these experts: the trunk, then each of them in the order of their numbers.

    Raises:
        LocalProtocolError: an expert that the run lacks, or one twice.
    """
    if len(set(experts)) != len(experts):
        raise LocalProtocolError(f"experts {list(experts)}", "each once")
    schemas = (expert_schema(decoder, config, expert) for expert in sorted(experts))
    return ModelUnits((trunk_schema(decoder), *schemas))
