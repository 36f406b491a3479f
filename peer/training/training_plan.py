"""All inputs of a training process that holds whole units. Sent to it at its start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from averaging.data.assignment import SourceSpan
from averaging.data.shard_form import ShardForm, TokenBytes
from averaging.data.shards import ShardPath
from averaging.data.token_reader import TokenReader
from peer.training.plan.card_memory_core import CardLoad, adapter_load, experts_load, whole_load
from peer.training.plan.card_plan import CardPlan, Wishes
from peer.training.plan.layout import Mesh
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_families import ModelSection
from protocol.tensors.model_units import ModelUnits, model_units


class TextPlan(BaseModel):
    """The text of one data set that a training process reads.

    Attributes:
        train_bytes_per_token: mean length of a token, likewise the fields named so. Losses leave this process in nats per byte, so
            that they can be compared across tokenizers. For the byte tokenizer that is nats per token.
        base_shards: the frozen base's weights, in a run with an adapter.
        has_counts: whether the shards say which tokens count in the loss.
        has_starts: whether they say where documents begin, which then do not see each other.
        train_spans, heldout_spans: the sources of a mixture in both parts; empty without one.
        expert_shards: the training text of each expert held here, in numeric order; `expert_heldout_shards` is its held-out text.
            Empty if every expert trains on all of the text.
        expert_heldout_bytes_per_token: mean length of a token of each expert's held-out text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_shards: tuple[ShardPath, ...]
    heldout_shards: tuple[ShardPath, ...]
    prose_shards: tuple[ShardPath, ...] = ()
    token_bytes: TokenBytes = 2
    has_counts: bool = False
    has_starts: bool = False
    train_spans: tuple[SourceSpan, ...] = ()
    heldout_spans: tuple[SourceSpan, ...] = ()
    train_bytes_per_token: float = 1.0
    heldout_bytes_per_token: float = 1.0
    prose_bytes_per_token: float = 1.0
    base_shards: tuple[ShardPath, ...] = ()
    expert_shards: tuple[tuple[ShardPath, ...], ...] = ()
    expert_heldout_shards: tuple[tuple[ShardPath, ...], ...] = ()
    expert_heldout_bytes_per_token: tuple[float, ...] = ()

    @property
    def form(self) -> ShardForm:
        """How the shards of text are laid out."""
        return ShardForm(self.token_bytes, self.has_counts, self.has_starts)

    def reader(self, shards: Sequence[Path], spans: Sequence[SourceSpan] = ()) -> TokenReader:
        """A reader of some of these shards. Raises StorageError."""
        return TokenReader(
            shards, self.token_bytes, has_counts=self.has_counts, has_starts=self.has_starts, spans=spans
        )


class MachinePlan(BaseModel):
    """The owner's part of the inputs of any training process: its device, its limits, and what it keeps on disk.

    Attributes:
        num_threads: torch threads, 0 for torch's own choice.
        max_gpu_memory_bytes: most memory of the card that torch may take, 0 for all of it.
        slowdown: it works at 1 / slowdown of full speed.
        card_plan: how the card trains, None to choose it at the start by the `wishes` of the owner.
        moments_file: where the optimizer's moments are kept over a restart, None for nowhere.
        moments_within_tokens: moments from more of the run's tokens ago are not taken up.
        compile_folder: for compiled code, None for the places that torch chooses.
        mesh: how several processes share this replica; `rank` is this one's number among them.
        meeting: an empty folder in which the ranks find each other, None for one process alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str = "auto"
    num_threads: int = 0
    max_gpu_memory_bytes: int = 0
    slowdown: float = 1.0
    card_plan: CardPlan | None = None
    wishes: Wishes = Wishes()
    moments_file: ShardPath | None = None
    moments_within_tokens: int = 0
    compile_folder: Path | None = None
    mesh: Mesh = Mesh()
    rank: NonNegativeInt = 0
    meeting: Path | None = None


class TrainingPlan(TextPlan, MachinePlan):
    """All inputs of a training process, including its text.

    Attributes:
        total_tokens: of the run, for the learning-rate schedule.
        first_step: the data position to resume from.
        stride: an island takes each `stride`-th data position, because others take those between.
        schedule_tokens: the run's committed tokens at the first anchor, for the learning rate.
        micro_batch: sequences at a time; 0 to find it by measuring.
        trains: False for a process that holds the state, obeys commands, and never takes a step.
        max_memory_bytes: most memory of all of the peer's processes together, 0 for any.
        num_fragments: number of fragments that are averaged separately (protocol/tensors/model_units.py), 0 for the whole model at
            once.
        adapter: in a run of an adapter over the frozen base of `base_shards`.
        mixture: in a run of experts; `experts` are those held here, in numeric order.
    """

    model: ModelSection
    inner: InnerSection
    seed: int
    peer: str
    total_tokens: int
    is_paused: bool = False
    first_step: int = 0
    stride: PositiveInt = 1
    schedule_tokens: int = 0
    micro_batch: int = 0
    trains: bool = True
    max_memory_bytes: int = 0
    num_fragments: int = 0
    adapter: AdapterConfig | None = None
    mixture: MixtureConfig | None = None
    experts: tuple[int, ...] = ()

    @property
    def units(self) -> ModelUnits:
        """The units held here, in the order of the vectors that are shared with the daemon."""
        if self.mixture is not None:
            return held_units(self.model, self.mixture, self.experts)
        if self.adapter is not None:
            return ModelUnits((adapter_schema(self.model, self.adapter),))
        return model_units(self.model, self.num_fragments)

    @property
    def load(self) -> CardLoad:
        """The part of the model that the card holds."""
        if self.mixture is not None:
            return experts_load(self.model, self.mixture, self.experts)
        if self.adapter is not None:
            return adapter_load(self.model, self.adapter)
        return whole_load(self.model)

    def places_of(self, expert: int | None) -> range | tuple[int, int]:
        """Indexes of the units that a step trains: all of them, or the trunk and one expert."""
        return range(len(self.units.schemas)) if expert is None else (0, 1 + self.experts.index(expert))
