"""Messages between the daemon and a training process that holds one stage of a pipeline run.

Orders and replies are length-prefixed JSON as in worker_channel.py. If one has `num_bytes`, that many bytes follow it: a message
between stages. The stage's parameters and snapshots go through shared memory (snapshot_room.py).

Orders are obeyed and answered one after another, but for "written": each process that writes a snapshot answers it once its rows
are there, while later orders are obeyed.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from averaging.data.assignment import SourceSpan
from averaging.data.shard_form import TokenBytes
from averaging.data.shards import ShardPath
from peer.training.plan.card_report import CardReport
from peer.training.training_plan import MachinePlan
from peer.training.worker_channel import Failed, OutOfMemory
from protocol.errors import LocalProtocolError
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from protocol.run.pipeline_section import PipelineSection
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_families import ModelSection
from protocol.tensors.stage_schema import StageMap

STAGE_KIND: Final = "stage"
"""Kind in the first message to a training process that is to hold a stage."""

STATE: Final = 0
"""Number of a reply to no order: a card beside the first one says how it trains."""

StageOp = Literal[
    "open", "arrived", "run_pass", "square", "take_step", "snapshot", "written", "restore", "theta", "adopt", "slow"
]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StagePlan(MachinePlan):
    """Everything that a training process of a stage is started with.

    Attributes:
        total_tokens: of the run, for the learning-rate schedule.
        train_shards, heldout_shards: read at the first and the last stage only.
    """

    kind: Literal["stage"] = "stage"
    run_id: str
    model: ModelSection
    pipeline: PipelineSection
    inner: InnerSection
    stage: int
    seed: int
    total_tokens: int
    train_shards: tuple[ShardPath, ...] = ()
    heldout_shards: tuple[ShardPath, ...] = ()
    token_bytes: TokenBytes = 2
    has_counts: bool = False
    train_spans: tuple[SourceSpan, ...] = ()
    heldout_spans: tuple[SourceSpan, ...] = ()
    train_bytes_per_token: float = 1.0
    heldout_bytes_per_token: float = 1.0

    @property
    def stages(self) -> StageMap:
        """The stages of the model."""
        return self.pipeline.stage_map(self.model)

    @property
    def lanes(self) -> LaneConfig:
        """The lane settings."""
        return self.pipeline.lane_config(self.model, self.inner)


class StageOrder(_Message):
    """One call of `StageWork` (peer/pipeline/transport/lane_work.py). The answer is a StageReply of the same number.

    Attributes:
        lane, epoch, round, step, micro_batch, is_backward: the pass or the inner step that the order is about.
        whole_square: as a hexadecimal number, since JSON has no non-finite numbers.
        schedule_tokens: the run's committed tokens, with "open" and "adopt".
        snapshot_bytes: of the snapshot to continue from, which lies in the shared memory.
        num_bytes: number of bytes that follow.
    """

    kind: Literal["order"] = "order"
    number: int
    op: StageOp
    lane: int = 0
    epoch: int = 0
    round: int = 0
    step: int = 0
    micro_batch: int = 0
    is_backward: bool = False
    whole_square: str = ""
    schedule_tokens: int = 0
    factor: float = 1.0
    snapshot_bytes: Annotated[int, Field(ge=0)] = 0
    num_bytes: int = 0

    @property
    def at(self) -> Point:
        """The inner step that the order is about."""
        return Point(self.round, self.step)

    @property
    def work(self) -> Pass:
        """The pass that the order is about."""
        return Pass(self.micro_batch, self.is_backward)


class StageReply(_Message):
    """The result of an order.

    Attributes:
        refused: what was found, if data from another peer was refused; `failed` if the stage cannot continue.
        expected: what was expected instead.
        square: squared norm of the gradient, as a hexadecimal number.
        counts: whether the step's tokens count.
        busy_s: seconds that the order took, including waits due to the owner's controls.
        loss_nats: mean of the last inner step, in nats per byte, at the last stage.
        heldout_nats: of the held-out text, with its last pass, at the last stage.
        snapshot_bytes: of the snapshot that was taken.
        num_writers: processes that write it.
        card: UUID of the NVIDIA card that trains, empty for another device.
        compile_note: why layers run eagerly although the plan compiles them, in one line.
        wire_note: why values go a slow way between the stage's cards, in one line.
        card_report: how it trains.
    """

    kind: Literal["stage_reply"] = "stage_reply"
    number: int
    refused: str = ""
    failed: str = ""
    expected: str = ""
    square: str = ""
    counts: bool = True
    busy_s: float = 0.0
    loss_nats: float | None = None
    heldout_nats: float | None = None
    num_bytes: Annotated[int, Field(ge=0)] = 0
    snapshot_bytes: Annotated[int, Field(ge=0)] = 0
    num_writers: Annotated[int, Field(ge=1)] = 1
    card: str | None = None
    compile_note: str = ""
    wire_note: str = ""
    card_report: CardReport | None = None


StageEvent = StageReply | OutOfMemory | Failed
_EVENTS: Final[TypeAdapter[StageEvent]] = TypeAdapter(Annotated[StageEvent, Field(discriminator="kind")])


def parse_reply(data: bytes) -> StageEvent:
    """Parse a reply of the training process, or its last words.

    Raises:
        LocalProtocolError: it cannot be read.
    """
    try:
        return _EVENTS.validate_json(data)
    except ValidationError as error:
        found = f"an answer of the training process that cannot be read ({error.error_count()} fields)"
        raise LocalProtocolError(found, "a StageReply", "it is started again") from error
