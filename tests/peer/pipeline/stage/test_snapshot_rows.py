"""Rows of a stage's snapshot: several processes write and read together what one does, and no one of them holds a whole vector."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from peer.pipeline.stage.snapshot_rows import restore_rows, send_rows
from peer.pipeline.stage.stage_snapshot import most_snapshot_bytes
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.plan.boxes import Box, box_of
from peer.training.plan.card_plan import FLOAT32
from peer.training.plan.layout import Mesh
from peer.training.replica.replica import Replica
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.stage_schema import stage_schema
from protocol.tensors.tensor_schema import TensorSchema
from tests.oracles.counted_rank_memory import CountedCard
from tests.peer.lane_world import INNER
from tests.peer.stage_world import STAGES, stage_model
from tests.peer.whole_snapshot import encode_snapshot, in_memory, snapshot_of

STAGE = 1
SCHEMA = stage_schema(STAGES, STAGE)
MUON = InnerSection(learning_rate=0.01, batch_tokens=16, optimizer="muon")
UNEVEN, MANY = 3, 11
"""Ranks: rows of the model are no multiple of the first, and fewer than the second for some of its tensors."""


class _Rows(Replica):
    """The rows of one rank, without other processes."""

    def __init__(self, inner: InnerSection, num_ranks: int, rank: int) -> None:
        self._mesh, self._rank = Mesh(shard=num_ranks), rank
        super().__init__(stage_model(STAGE, torch.float32), SCHEMA, inner, FLOAT32)

    def _own_parameters(self) -> list[nn.Parameter]:
        wholes = super()._own_parameters()
        return [nn.Parameter(whole.detach()[box.slices].clone()) for whole, box in zip(wholes, self.boxes, strict=True)]

    @property
    def boxes(self) -> list[Box]:
        return [box_of(spec.shape, self._mesh, self._rank) for spec in SCHEMA.tensors]

    def parts(self, values_N: torch.Tensor, schema: TensorSchema) -> list[torch.Tensor]:
        return [part[box.slices] for part, box in zip(super().parts(values_N, schema), self.boxes, strict=True)]


def _whole(inner: InnerSection, *, steps: int) -> StageTrainer:
    """One process, after some steps on noise."""
    trainer = StageTrainer(stage_model(STAGE, torch.float32), inner, most_kept=1)
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in trainer.replica.parameters:
            parameter.grad = torch.randn_like(parameter)
        trainer.replica.step(0.01)
    return trainer


def _ranks(inner: InnerSection, num_ranks: int) -> list[StageTrainer]:
    """Each with its rows."""
    model = stage_model(STAGE, torch.float32)
    return [StageTrainer(model, inner, most_kept=1, replica=_Rows(inner, num_ranks, rank)) for rank in range(num_ranks)]


def _written(trainers: list[StageTrainer]) -> bytes:
    """The bytes that all of them write together."""
    out = torch.zeros(most_snapshot_bytes(SCHEMA), dtype=torch.uint8)
    sizes = {send_rows(trainer, out, is_first=rank == 0) for rank, trainer in enumerate(trainers)}
    (num_bytes,) = sizes
    return out[:num_bytes].numpy().tobytes()


def _alone(is_so: bool) -> bool:
    return is_so


@pytest.mark.parametrize("num_ranks", [1, 2, UNEVEN, MANY])
@pytest.mark.parametrize("inner", [INNER, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("steps", [0, 2], ids=["no step yet", "with moments"])
def test_ranks_write_together_the_snapshot_of_one_process_and_each_goes_on_from_its_rows_of_it(
    inner: InnerSection, num_ranks: int, steps: int
) -> None:
    whole = encode_snapshot(snapshot_of(_whole(inner, steps=steps)))
    ranks = _ranks(inner, num_ranks)
    for trainer in ranks:
        restore_rows(trainer, in_memory(whole), _alone)
    assert _written(ranks) == whole


def test_no_rank_takes_memory_for_more_than_a_head_when_it_writes_or_reads_its_rows() -> None:
    whole = in_memory(encode_snapshot(snapshot_of(_whole(INNER, steps=1))))
    trainer = _ranks(INNER, UNEVEN)[1]
    restore_rows(trainer, whole, _alone)
    own = [*trainer.replica.parameters, *trainer.replica.optimizer.moments()]
    rows_bytes = sum(each.untyped_storage().nbytes() for each in own)
    out = torch.zeros_like(whole)
    acts: list[Callable[[], object]] = [
        lambda: send_rows(trainer, out, is_first=True),
        lambda: restore_rows(trainer, whole, _alone),
    ]
    for act in acts:
        with CountedCard() as counted:
            act()
        taken_bytes = counted.peak_bytes - whole.nbytes
        assert rows_bytes / 3 < taken_bytes < rows_bytes + SCHEMA.num_elements, "fewer than a byte for each value"


def test_a_value_that_is_not_finite_in_the_rows_of_one_is_refused_by_all_and_changes_none() -> None:
    inner, wrong = INNER, snapshot_of(_whole(INNER, steps=1))
    wrong.theta_N[-1] = torch.nan
    data = in_memory(encode_snapshot(wrong))
    ranks = _ranks(inner, UNEVEN)
    before = _written(ranks)
    found = []
    for trainer in ranks:
        with pytest.raises(RemoteProtocolError, match="not finite"):
            restore_rows(trainer, data, lambda is_so: found.append(is_so) is not None)
    assert found == [True, True, False]
    assert _written(ranks) == before


@pytest.mark.parametrize("num_moments", [1, 4])
def test_a_snapshot_of_another_optimizer_is_refused(num_moments: int) -> None:
    snapshot = snapshot_of(_whole(INNER, steps=1))
    less = type(snapshot)(snapshot.theta_N, snapshot.moments[:num_moments])
    with pytest.raises(LocalProtocolError, match=f"{num_moments} moments"):
        restore_rows(_whole(INNER, steps=0), in_memory(encode_snapshot(less)), _alone)


def test_moments_of_another_shape_are_refused() -> None:
    snapshot = snapshot_of(_whole(INNER, steps=1))
    turned = tuple(moment.T.contiguous() if moment.dim() == 2 else moment for moment in snapshot.moments)
    with pytest.raises(LocalProtocolError, match="of shape"):
        restore_rows(
            _whole(INNER, steps=0), in_memory(encode_snapshot(type(snapshot)(snapshot.theta_N, turned))), _alone
        )
