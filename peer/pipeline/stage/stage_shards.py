"""One stage that is too large for one card: each of several cards holds some rows of every parameter and of its moments.

They take each pass and each step together, as the ranks of a replica do (peer/training/ranks/ranked_replica.py). Every card reads and
writes its own rows in the memory shared with the daemon, those of snapshots too: no process holds a whole vector.

Shapes: N values of the whole stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.snapshot_rows import restore_rows
from peer.pipeline.stage.stage_ranks import StageRanks
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.plan.card_plan import CardPlan
from peer.training.ranks.rank_group import RankGroup
from peer.training.replica.replica import Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.stage_schema import StageMap, stage_schema


def sharded_replica(
    stages: StageMap,
    stage: int,
    inner: InnerSection,
    plan: CardPlan,
    device: torch.device,
    group: RankGroup,
    meeting: Path | None,
) -> Replica:
    """This card's part of a stage. Its values are 0 until they are loaded.

    Raises:
        MachineError: this torch cannot do it.
    """
    from peer.training.ranks.ranked_replica import RankedReplica  # imports torch.distributed

    return RankedReplica(
        partial(StageDecoder, stages, stage), stage_schema(stages, stage), inner, plan, device, group, meeting
    )


class StageShards(StageRanks):
    """The cards of one stage, each of which holds some rows. All ranks make the same calls in the same order."""

    of_the_first = ("slow",)

    @property
    def num_writers(self) -> int:
        """Each card writes its rows."""
        return self.group.size

    @property
    def takes_steps(self) -> bool:
        """Each card moves its rows."""
        return True

    def same_moments(self, saved_tokens: int) -> bool:
        """As `moments.SameOnAll`: rows fit each other only if they were saved at the same time."""
        return self.group.is_same(saved_tokens)

    def load(self, trainer: StageTrainer, theta_N: torch.Tensor) -> None:
        """Set each card's rows to those of (N,), which all can read, and wait until all have."""
        trainer.load(theta_N)
        self.group.wait()

    def write_theta(self, trainer: StageTrainer, out_N: torch.Tensor) -> None:
        """Write each card's rows into (N,), which all can write, and wait until all have."""
        trainer.write_theta(out_N)
        self.group.wait()

    def square(self, trainer: StageTrainer) -> float:
        """As `StageRanks.square`."""
        found = trainer.gradient_square()
        return found if self.is_first else 0.0

    def spread(self, parameters: Sequence[torch.Tensor]) -> None:
        """Nothing: no parameter is on two cards."""

    def restore(self, trainer: StageTrainer, data: torch.Tensor) -> bool:
        """As `StageRanks.restore`: each card reads its rows. Waits until all have."""
        restore_rows(trainer, data, self.group.all)
        self.group.wait()
        return True
