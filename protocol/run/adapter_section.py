"""The section [adapter] of run.toml, of runs that train a LoRA adapter over a frozen base.

Its learning rate is ten times that of full fine-tuning (Schulman and others, LoRA Without Regret, 2025).
"""

from __future__ import annotations

from pydantic import SerializerFunctionWrapHandler, model_serializer

from protocol.run.experts_section import RunNumbers
from protocol.run.section import Section
from protocol.tensors.adapter_schema import AdapterConfig, Alpha, BaseType, Rank, adapter_problem
from protocol.tensors.model_config import ModelConfig


class AdapterSection(Section):
    """A LoRA adapter over the frozen weights of run.start_from. The adapter is all that the run trains and averages. It takes about
    ten times the learning rate of the whole model.
    """

    rank: Rank
    """Rank of the adapter: width of the two small matrices beside each adapted one. More learn more and take more bytes a round."""

    alpha: Alpha = 16.0
    """The adapter's output is multiplied by alpha / rank."""

    targets: list[str] = []  # noqa: RUF012 - copied for each section
    """Adapted matrices of each layer, such as ["q_proj", "v_proj"]. All matrices of the layers if not given."""

    base: BaseType = "bf16"
    """Type of the base's matrices while they are trained on: "bf16", or "int8", which takes half the memory and is less exact."""

    @property
    def config(self) -> AdapterConfig:
        """The numbers of the model."""
        return AdapterConfig(rank=self.rank, alpha=self.alpha, targets=tuple(self.targets), base=self.base)

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), frozenset(["rank", "alpha"]))


def adapter_contradiction(adapter: AdapterSection | None, model: ModelConfig, numbers: RunNumbers) -> str:
    """The first of these numbers that cannot work, with one that would; "" if all fit."""
    if adapter is None:
        return ""
    if numbers.shards != "data":
        return f'the section [adapter] with run.shards = "{numbers.shards}": expected "data"'
    if numbers.mode == "streaming":
        return 'round.mode = "streaming" with a section [adapter]: expected "overlap" or "blocking"'
    if not numbers.start_from:
        return "the section [adapter] without run.start_from: expected the folder of the base model"
    return adapter_problem(model, adapter.rank, adapter.targets)
