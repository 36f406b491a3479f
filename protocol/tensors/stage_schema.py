"""A pipeline run's stages: the layers of each, its unit and its tensors, without any tensor library.

A stage is a run of layers; the first one also carries the embedding, the last one the last norm and the head. Each is a unit, with
the tensor names of the config's `tensors`. So the stages' vectors one after another are the whole model's vector, and a checkpoint
of a pipeline run is one of any run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from protocol.errors import ConfigError, LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.model_config import ModelConfig, model_parts
from protocol.tensors.tensor_schema import TensorSchema

MAX_STAGES: Final = 64
_PREFIX: Final = "stage-"


@dataclass(frozen=True)
class StageMap:
    """How many layers each stage of a model has, first to last.

    Attributes:
        layers: of each stage. The first and the last may have none: an embedding or a head can be a stage of its own.

    Raises:
        ConfigError: stages that do not cover the model, more of them than there may be, or a model whose head is its embedding.
    """

    decoder: ModelConfig
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.layers) <= MAX_STAGES:
            raise ConfigError(f"{len(self.layers)} stages", f"1 to {MAX_STAGES}")
        for stage, count in enumerate(self.layers):
            is_end = len(self.layers) > 1 and stage in (0, len(self.layers) - 1)
            if count < (0 if is_end else 1):
                raise ConfigError(
                    f"stage {stage} of {list(self.layers)} with {count} layers", f"at least {0 if is_end else 1}"
                )
        if sum(self.layers) != self.decoder.num_layers:
            raise ConfigError(
                f"stages of {list(self.layers)} layers, {sum(self.layers)} together",
                f"the model's {self.decoder.num_layers}",
                "give every layer to one stage",
            )
        if self.decoder.is_tied and len(self.layers) > 1:
            raise ConfigError(
                "a model whose head is its embedding, in stages: the first and the last would share one matrix",
                "matrices of their own",
                "set is_tied = false",
            )

    @property
    def num_stages(self) -> int:
        """Stages of the whole model."""
        return len(self.layers)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """[first, stop) of each stage in layers of the model."""
        stops = list(accumulate(self.layers))
        return tuple(zip([0, *stops], stops, strict=False))

    def span(self, stage: int) -> tuple[int, int]:
        """[first, stop) of one stage in layers of the model.

        Raises:
            LocalProtocolError: the run lacks this stage.
        """
        if not 0 <= stage < self.num_stages:
            raise LocalProtocolError(f"stage {stage}", f"0 to {self.num_stages - 1}")
        return self.spans[stage]

    def is_first(self, stage: int) -> bool:
        """Whether it takes tokens and carries the embedding."""
        return stage == 0

    def is_last(self, stage: int) -> bool:
        """Whether it gives logits and carries the last norm and the head."""
        return stage == self.num_stages - 1


def stage_unit(stage: int) -> UnitName:
    """The unit of a stage."""
    return UnitName(f"{_PREFIX}{stage}")


def stage_of(unit: UnitName, stages: StageMap) -> int:
    """The stage's number of a unit.

    Raises:
        ConfigError: the run lacks this unit.
    """
    number = unit.removeprefix(_PREFIX)
    if number.isascii() and number.isdecimal() and unit == stage_unit(int(number)) and int(number) < stages.num_stages:
        return int(number)
    raise ConfigError(f"unit {unit!r}", f"{_PREFIX}0 to {_PREFIX}{stages.num_stages - 1}")


def stage_schema(stages: StageMap, stage: int) -> TensorSchema:
    """One stage's tensors in the model's own order.

    Raises:
        LocalProtocolError: the run lacks this stage.
    """
    first, stop = stages.span(stage)
    parts = model_parts(stages.decoder)
    layers = parts.layers[first:stop]
    specs = [spec for layer in layers for spec in layer]
    ends = (parts.first if stages.is_first(stage) else (), parts.last if stages.is_last(stage) else ())
    return TensorSchema(stage_unit(stage), (*ends[0], *specs, *ends[1]))
