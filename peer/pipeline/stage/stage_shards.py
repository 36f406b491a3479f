"""One stage that is too large for one card: each of several cards holds some rows of every parameter and of its moments.

They take each pass and each step together, as the ranks of a replica do (peer/training/ranks/ranked_replica.py). Every card reads and
writes its own rows in the memory shared with the daemon. Only for a snapshot, which is one message, the first process gathers all rows
in the machine's memory.

Shapes: N values of the whole stage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

import torch

from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.stage_ranks import StageRanks
from peer.pipeline.stage.stage_trainer import StageSnapshot, StageTrainer
from peer.training.plan.boxes import Box
from peer.training.plan.card_plan import CardPlan
from peer.training.ranks.rank_group import RankGroup
from peer.training.replica.replica import Replica
from protocol.errors import LocalProtocolError, PotluckError
from protocol.run.training_sections import InnerSection
from protocol.tensors.stage_schema import StageMap, stage_schema

_REFUSED: Final = b"refused"


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

    def snapshot(self, trainer: StageTrainer) -> StageSnapshot:
        """As `StageRanks.snapshot`: on the first rank, bit for bit the snapshot of a stage on one card. The others give their rows."""
        from peer.training.ranks.whole_tensors import on_first  # imports torch.distributed

        replica, boxes = trainer.replica, _boxes(trainer)
        shapes, held = [spec.shape for spec in replica.schema.tensors], replica.optimizer.moments()
        values = [on_first(own, boxes[place], shapes[place]) for place, own in enumerate(replica.parameters)]
        moments = [
            on_first(own, boxes[place], shapes[place]) if own.dim() else own.to("cpu", copy=True)
            for place, own in zip(_places(replica)[: len(held)], held, strict=True)
        ]
        theta_N = torch.cat([value.flatten() for value in values if value is not None] or [torch.empty(0)])
        return StageSnapshot(theta_N, tuple(moment for moment in moments if moment is not None))

    def restore(self, trainer: StageTrainer, decode: Callable[[], StageSnapshot]) -> bool:
        """As `StageRanks.restore`."""
        snapshot = None
        if self.is_first:
            try:
                snapshot = decode()
                counts = _counts_in(snapshot, trainer)
            except PotluckError:
                self.group.share(_REFUSED)
                raise
            self.group.share(json.dumps(counts).encode())
        else:
            told = self.group.share()
            if told == _REFUSED:
                return False
            counts = json.loads(told)
        trainer.restore_parts(*self._parts(trainer, snapshot, counts))
        return True

    def _parts(
        self, trainer: StageTrainer, snapshot: StageSnapshot | None, counts: Sequence[float | None]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """This rank's rows of the parameters and of the moments.

        Args:
            counts: for each moment, its value if it is one number for all rows, such as a count of steps; else None.
        """
        from peer.training.ranks.whole_tensors import from_first  # imports torch.distributed

        replica, boxes = trainer.replica, _boxes(trainer)
        shapes = [spec.shape for spec in replica.schema.tensors]
        wholes: Sequence[torch.Tensor | None] = [None] * len(shapes)
        if snapshot is not None:
            flat = torch.split(snapshot.theta_N, [spec.num_elements for spec in replica.schema.tensors])
            wholes = [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]
        theta = [from_first(whole, there, torch.float32) for whole, there in zip(wholes, boxes, strict=True)]
        moments = []
        for number, (place, count) in enumerate(zip(_places(replica)[: len(counts)], counts, strict=True)):
            if count is not None:
                moments.append(torch.tensor(count))
            else:
                whole = None if snapshot is None else snapshot.moments[number].view(shapes[place])
                moments.append(from_first(whole, boxes[place], torch.float32))
        return theta, moments


def _boxes(trainer: StageTrainer) -> list[list[Box]]:
    from peer.training.ranks.ranked_replica import RankedReplica  # imports torch.distributed

    return cast(RankedReplica, trainer.replica).boxes_by_rank


def _places(replica: Replica) -> list[int]:
    """The number of the parameter that each moment belongs to."""
    numbers = {parameter: number for number, parameter in enumerate(replica.parameters)}
    return [numbers[owner] for owner in replica.optimizer.owners()]


def _counts_in(snapshot: StageSnapshot, trainer: StageTrainer) -> list[float | None]:
    """For each moment, its value if it is one number for all rows; else None.

    Raises:
        LocalProtocolError: a snapshot of another stage or optimizer.
    """
    replica, places = trainer.replica, _places(trainer.replica)
    trainer.require_own(snapshot)
    if len(snapshot.moments) not in (0, len(places)):
        raise LocalProtocolError(f"{len(snapshot.moments)} moments in a snapshot", f"none, or {len(places)}")
    for place, moment in zip(places[: len(snapshot.moments)], snapshot.moments, strict=True):
        shape = replica.schema.tensors[place].shape
        if moment.dim() and tuple(moment.shape) != shape:
            raise LocalProtocolError(f"a moment of shape {tuple(moment.shape)} in a snapshot", f"{shape}")
    return [None if moment.dim() else float(moment) for moment in snapshot.moments]
