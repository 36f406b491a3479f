"""Fine-tuning of a base by a few peers in this process: of all its values, or of an adapter over it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.codecs import codec_by_name
from peer.training.local_training import LocalTrainer
from peer.training.training_plan import TextPlan, TrainingPlan
from protocol.rounds.messages.record import OuterStep
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.model_families import ModelSection
from protocol.tensors.round_defaults import default_chunk_elements
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import apply_outer_step, encode_chunks, encode_contribution
from tests.benchmarks.feedback import decoded

CODEC: Final = "int8"
NUM_PEERS: Final = 2


@dataclass(frozen=True)
class World:
    """A base, and the text on which it is trained further.

    Attributes:
        text: with the shards of the base.
    """

    name: str
    model: ModelSection
    text: TextPlan

    def base(self) -> torch.Tensor:
        """(N,) float32 with the values of bfloat16."""
        bits = np.concatenate([np.fromfile(path, dtype="<u2") for path in self.text.base_shards])
        return torch.from_numpy(bits).view(torch.bfloat16).float()


@dataclass(frozen=True)
class Course:
    """How both sides are trained: `num_rounds` rounds of `NUM_PEERS` peers, each with `local_steps` steps of `batch_tokens`."""

    num_rounds: int
    local_steps: int
    batch_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens of all peers."""
        return NUM_PEERS * self.num_rounds * self.local_steps * self.batch_tokens


@dataclass(frozen=True)
class Trial:
    """One fine-tuning. Without an adapter all values are trained; without rounds the base is measured."""

    world: World
    course: Course
    adapter: AdapterConfig | None
    rate: float

    def numbers(self) -> dict[str, object]:
        """All of it, for JSON."""
        adapter = None if self.adapter is None else self.adapter.model_dump()
        context = self.world.model.context_tokens
        return {
            "base": self.world.name,
            "context_tokens": context,
            **asdict(self.course),
            "adapter": adapter,
            "rate": self.rate,
        }

    @property
    def key(self) -> str:
        """The same for the same numbers."""
        return " ".join(f"{name}={value}" for name, value in self.numbers().items())


@dataclass(frozen=True)
class Outcome:
    """The held-out loss at the end in nats per byte, the bytes that one peer sent and received in a round, and processor time."""

    loss: float
    round_bytes: int
    cpu_s: float


def trainer(world: World, rate: float, num_tokens: int, batch_tokens: int, more: dict[str, object]) -> LocalTrainer:
    """One peer's, for a run of so many tokens."""
    fields = {name: getattr(world.text, name) for name in TextPlan.model_fields}
    plan = TrainingPlan(
        **{**fields, "base_shards": ()},
        model=world.model,
        inner=InnerSection(learning_rate=rate, batch_tokens=batch_tokens, warmup_tokens=num_tokens // 20),
        seed=1,
        peer="peer",
        total_tokens=num_tokens,
        device="cpu",
        num_threads=torch.get_num_threads(),
        micro_batch=batch_tokens // world.model.context_tokens,
    )
    return LocalTrainer(plan.model_copy(update=more))


def fine_tune(trial: Trial) -> Outcome:
    """All rounds of the peers from the base."""
    world, course, adapter = trial.world, trial.course, trial.adapter
    begin_s, codec = time.process_time(), codec_by_name(CODEC)
    changes: dict[str, object] = {} if adapter is None else {"adapter": adapter, "base_shards": world.text.base_shards}
    anchor_N = world.base() if adapter is None else genesis_anchor(adapter_schema(world.model, adapter), 1)
    members = [
        trainer(
            world, trial.rate, max(1, course.num_tokens), course.batch_tokens, {**changes, "peer": f"peer {number}"}
        )
        for number in range(NUM_PEERS if course.num_rounds else 1)
    ]
    grid = ChunkGrid(len(anchor_N), default_chunk_elements(len(anchor_N), NUM_PEERS, None))
    momentum_N, round_bytes = torch.zeros_like(anchor_N), 0
    for number in range(course.num_rounds):
        total, sent = WeightedSum(grid.num_elements), 0
        for member in members:
            member.load(anchor_N, number * course.num_tokens // course.num_rounds)
            for _ in range(course.local_steps):
                member.step()
            offered = encode_contribution(anchor_N, member.theta(), 1, codec, grid)
            sent = sum(map(len, offered.chunks))
            total.add(1, decoded(offered.chunks, codec, grid))
        mean = encode_chunks(total.mean(), codec, grid)
        round_bytes = sent + sum(map(len, mean))
        update_N = decoded(mean, codec, grid)
        anchor_N, momentum_N = apply_outer_step(anchor_N, momentum_N, update_N, OuterStep("mean", 1.0, 0.0))
    return Outcome(members[0].evaluate(anchor_N), round_bytes, time.process_time() - begin_s)
