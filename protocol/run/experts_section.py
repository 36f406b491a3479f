"""The section [experts] of run.toml, of runs with `shards = "expert"`, and whether its numbers fit the rest of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.run.section import Section
from protocol.tensors.expert_schema import MAX_EXPERTS, MixtureConfig, expert_schema
from protocol.tensors.model_config import ModelConfig, Size, model_schema

Shards = Literal["data", "expert", "pipeline"]
"""The part of the model that a peer holds: "data", all of it; "expert", the trunk and some experts; "pipeline", one stage."""

RouterFeatures = Literal["grams", "embeddings"]
"""Features by which a router knows documents: "grams", runs of bytes; "embeddings", the trunk's embeddings of their tokens."""

MAX_EMBEDDING_FEATURES: Final = 256
"""Features of a token in a router's file. A wider model's embedding is folded into this many sums."""

MAX_ROUTER_BYTES: Final = 64 << 20
"""Size of a router's file, in which each feature of an embedding is a byte."""


_REASSIGN: Final = "reassign_every_rounds"
"""A key that other releases know: it sends documents to other experts during a run."""


class ExpertsSection(Section):
    """Experts beside the feed-forward of each layer, for runs with run.shards = "expert"."""

    num_experts: Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
    """Number of experts. The peers that the run starts with must be able to hold all of them."""

    ffn_dim: Size
    """Inner width of the feed-forward of an expert, next to the one of model.ffn_dim that all tokens pass."""

    top_k: Annotated[int, Field(ge=1, le=MAX_EXPERTS)] = 1
    """Experts that a token passes in the merged model. Training and its cost stay the same."""

    holdings: Annotated[int, Field(ge=1, le=MAX_EXPERTS)] = 1
    """Most experts that a peer holds. It takes a second one only if nobody else holds that."""

    min_documents: Annotated[int, Field(ge=1, le=1 << 40)] = 8
    """Fewest documents of an expert. The host opens no run that would leave one with fewer."""

    router: Annotated[str, Field(max_length=4096)] = ""
    """Path of a router file, relative to run.toml. The host makes one from the documents if not given."""

    router_features: RouterFeatures = "grams"
    """Features by which the router knows documents: "grams", runs of bytes, or "embeddings" of their tokens."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_reassignment(cls, values: object) -> object:
        """Take 0, which means never; refuse anything else."""
        if not isinstance(values, dict) or _REASSIGN not in values:
            return values
        every_rounds = values[_REASSIGN]
        if type(every_rounds) is not int or every_rounds:
            raise ValueError(
                f"{_REASSIGN} is {every_rounds!r}, and documents stay with the expert that they were packed for: "
                "expected 0, or no such line"
            )
        return {name: value for name, value in values.items() if name != _REASSIGN}

    @property
    def mixture(self) -> MixtureConfig:
        """The numbers of the model."""
        return MixtureConfig(num_experts=self.num_experts, ffn_dim=self.ffn_dim, top_k=self.top_k)

    def held_elements(self, model: ModelConfig) -> int:
        """The most values that a peer holds: the trunk and `holdings` experts."""
        return model_schema(model).num_elements + self.holdings * self.expert_elements(model)

    def expert_elements(self, model: ModelConfig) -> int:
        """Values of one expert."""
        return expert_schema(model, self.mixture, 0).num_elements

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), frozenset(["num_experts", "ffn_dim"]))


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """Numbers of the rest of the file that must fit a run whose peers hold parts of the model: experts, or stages."""

    shards: Shards
    min_members: int
    start_from: str
    mode: str
    ramp_share: float
    local_steps: str
    feedback: float
    target_tokens: int


def expert_contradiction(experts: ExpertsSection | None, model: ModelConfig, numbers: RunNumbers) -> str:
    """The first of these numbers that cannot work, with one that would; "" if all fit."""
    if numbers.shards != "expert":
        problem = f'the section [experts] belongs to run.shards = "expert", not to "{numbers.shards}"'
        return "" if experts is None else problem
    if experts is None:
        return 'run.shards = "expert": expected a section [experts] with num_experts and ffn_dim'
    if not model.takes_experts:
        return f'run.shards = "expert" with model.family = "{model.family}", which takes no experts: expected "llama"'
    return _impossible_numbers(experts, numbers) or _not_with_experts(numbers)


def _impossible_numbers(experts: ExpertsSection, numbers: RunNumbers) -> str:
    num_experts, holdings, members = experts.num_experts, experts.holdings, numbers.min_members
    for name, count in (("top_k", experts.top_k), ("holdings", holdings)):
        if count > num_experts:
            return f"experts.{name} {count} of {num_experts} experts: expected at most {num_experts}"
    if num_experts > members * holdings:
        return (
            f"experts.num_experts {num_experts}: the {members} peers that the run starts with hold {holdings} each: expected at most "
            f"{members * holdings}, experts.holdings of {-(-num_experts // members)}, or run.min_members of "
            f"{-(-num_experts // holdings)}"
        )
    if num_experts > numbers.target_tokens:
        return f"round.target_tokens {numbers.target_tokens}: expected at least one token for each of {num_experts} experts"
    return ""


def _not_with_experts(numbers: RunNumbers) -> str:
    if numbers.mode != "overlap":
        return f'round.mode = "{numbers.mode}" with run.shards = "expert": expected "overlap"'
    if numbers.ramp_share or numbers.local_steps:
        found = f"ramp_share {numbers.ramp_share}" if numbers.ramp_share else f'local_steps = "{numbers.local_steps}"'
        return f'round.{found} with run.shards = "expert": expected rounds of one size; leave it out'
    if numbers.start_from:
        return f'run.start_from = "{numbers.start_from}" with run.shards = "expert": expected values from the seed'
    return ""
