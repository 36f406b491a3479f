"""The section [pipeline] of run.toml, of runs with `shards = "pipeline"`: how the model is cut, and how its lanes work."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.errors import ConfigError
from protocol.kinds.boundary_table import BACKWARD_CODECS, FORWARD_CODECS
from protocol.pipeline.placement.cutting import StageMemory, computed_costs, cut, planned_memory
from protocol.pipeline.schedule import most_in_flight
from protocol.pipeline.stage_machine import LaneConfig
from protocol.run.experts_section import RunNumbers
from protocol.run.section import OneOf, Section
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.stage_schema import MAX_STAGES, StageMap, stage_schema

_EVERY_KEY: Final = frozenset(["inner_steps"])
_FAR_BYTES: Final = 1 << 60

HELDOUT_WINDOWS: Final = 64
"""Windows of held-out text on which a lane tests the parameters that each round begins with; a few more if they fill its passes."""


class PipelineSection(Section):
    """A model cut into stages, of which a peer holds one, for runs with run.shards = "pipeline"."""

    stages: Annotated[int, Field(ge=1, le=MAX_STAGES)] | None = None
    """Number of stages, cut so that each computes about as much as the others. Give this or `layers`."""

    layers: Annotated[str, Field(max_length=512)] = ""
    """Layers of each stage, first to last, as "1, 2, 1". The embedding is in the first stage, the head in the last."""

    inner_steps: Annotated[int, Field(ge=1, le=1 << 20)]
    """Local steps of a lane in each round. round.target_tokens is a multiple of these tokens."""

    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """Order in which a stage takes its micro-batches: "1f1b" takes less memory than "gpipe"."""

    micro_batches: Annotated[int, Field(ge=1, le=1 << 16)] = 4
    """Micro-batches of a local step. More of them keep stages busier and are smaller."""

    snapshot_every_steps: Annotated[int, Field(ge=1, le=1 << 20)] = 5
    """Local steps after which each stage is copied to a neighbour. A lane that loses a peer goes back to that copy."""

    forward_codec: Annotated[str, OneOf(FORWARD_CODECS)] = "int8"
    """Codec of activations between stages. Smaller ones suit slow links."""

    backward_codec: Annotated[str, OneOf(BACKWARD_CODECS)] = "int8"
    """Codec of gradients between stages."""

    recomputes: bool = False
    """Whether stages compute the forward pass again on the way back: less memory, more work."""

    @model_validator(mode="before")
    @classmethod
    def _without_mode(cls, values: object) -> object:
        """A file may name the one mode that there is, and never another."""
        if not isinstance(values, dict) or "mode" not in values:
            return values
        if values["mode"] != "lanes":
            raise ValueError(f'mode = {str(values["mode"])[:60]!r}: expected "lanes", the only mode of a pipeline run')
        return {key: value for key, value in values.items() if key != "mode"}

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), _EVERY_KEY)

    def stage_map(self, model: ModelConfig) -> StageMap:
        """The layers of each stage.

        Raises:
            ConfigError: stages that do not cover the model, or that it cannot be cut into.
        """
        if (self.stages is None) == (not self.layers):
            found = "both of pipeline.stages and pipeline.layers" if self.layers else "neither stages nor layers"
            raise ConfigError(found, "one of the two", 'write stages = 3, or layers = "1, 2, 1"')
        if self.layers:
            return StageMap(model, parse_layers(self.layers))
        num_stages = self.stages or 1
        if num_stages > model.num_layers + 2:
            raise ConfigError(
                f"pipeline.stages {num_stages} of a model of {model.num_layers} layers",
                f"at most {model.num_layers + 2}",
            )
        room = [_FAR_BYTES] * num_stages
        memory = planned_memory(model, micro_batch_tokens=model.context_tokens, in_flight=num_stages)
        found_map = cut(model, computed_costs(model), memory, room, num_stages=num_stages, replicas=1)
        return StageMap(model, found_map.layers)

    def memory(self, model: ModelConfig, inner: InnerSection) -> StageMemory:
        """Memory that each stage takes of a peer."""
        stages = self.stage_map(model)
        return planned_memory(
            model,
            micro_batch_tokens=inner.batch_tokens // self.micro_batches,
            in_flight=most_in_flight(self.schedule, 0, stages.num_stages, self.micro_batches),
            recomputes=self.recomputes,
        )

    def most_kept(self, stages: StageMap, stage: int) -> int:
        """Micro-batches whose activations a stage keeps at once."""
        if self.recomputes:
            return 1
        return most_in_flight(self.schedule, stage, stages.num_stages, self.micro_batches)

    def lane_config(self, model: ModelConfig, inner: InnerSection) -> LaneConfig:
        """The numbers of all lanes."""
        rows = inner.batch_tokens // model.context_tokens // self.micro_batches
        return LaneConfig(
            self.schedule,
            self.stage_map(model).num_stages,
            self.micro_batches,
            self.inner_steps,
            self.snapshot_every_steps,
            inner.batch_tokens,
            heldout_passes=-(-HELDOUT_WINDOWS // max(1, rows)),
        )

    def held_elements(self, model: ModelConfig) -> int:
        """The most values that a peer holds: those of the largest stage."""
        stages = self.stage_map(model)
        return max(stage_schema(stages, stage).num_elements for stage in range(stages.num_stages))


def parse_layers(text: str) -> tuple[int, ...]:
    """Layers of each stage as run.toml has them.

    Raises:
        ConfigError: no such numbers.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) <= 4 for word in words):
        raise ConfigError(f"pipeline.layers {text[:60]!r}", 'a number for each stage, as "1, 2, 1"')
    return tuple(map(int, words))


def pipeline_contradiction(
    pipeline: PipelineSection | None, model: ModelConfig, inner: InnerSection, numbers: RunNumbers
) -> str:
    """The first of these numbers that cannot work, with one that would; "" if all fit."""
    if numbers.shards != "pipeline":
        problem = f'the section [pipeline] belongs to run.shards = "pipeline", not to "{numbers.shards}"'
        return "" if pipeline is None else problem
    if pipeline is None:
        return 'run.shards = "pipeline": expected a section [pipeline] with stages and inner_steps'
    try:
        stages = pipeline.stage_map(model)
    except ConfigError as error:
        return error.one_line()
    return _impossible_numbers(pipeline, stages, inner, numbers) or _not_in_lanes(numbers)


def _impossible_numbers(pipeline: PipelineSection, stages: StageMap, inner: InnerSection, numbers: RunNumbers) -> str:
    sequences = inner.batch_tokens // stages.decoder.context_tokens
    if sequences % pipeline.micro_batches:
        return (
            f"pipeline.micro_batches {pipeline.micro_batches} of inner.batch_tokens {inner.batch_tokens}, which are "
            f"{sequences} sequences: expected a number that divides them"
        )
    if stages.num_stages > numbers.min_members:
        return (
            f"{stages.num_stages} stages in a run that starts with run.min_members {numbers.min_members}: expected a peer for each, "
            f"min_members of at least {stages.num_stages}"
        )
    of_a_lane = pipeline.inner_steps * inner.batch_tokens
    if numbers.target_tokens % of_a_lane:
        return (
            f"round.target_tokens {numbers.target_tokens}: expected a multiple of {of_a_lane}, which a lane trains in a round "
            "(pipeline.inner_steps times inner.batch_tokens)"
        )
    return ""


def _not_in_lanes(numbers: RunNumbers) -> str:
    shards = 'with run.shards = "pipeline"'
    if numbers.mode != "blocking":
        return f'round.mode = "{numbers.mode}" {shards}: expected "blocking", for a lane waits for its round'
    if numbers.ramp_share or numbers.local_steps:
        found = f"ramp_share {numbers.ramp_share}" if numbers.ramp_share else f'local_steps = "{numbers.local_steps}"'
        return f"round.{found} {shards}: expected rounds of one size; leave it out"
    if numbers.feedback:
        return f"round.error_feedback {numbers.feedback} {shards}: expected 0, for what a lane leaves out has no place of its own"
    return ""
