"""Parameters in the machine's memory: steps and losses are those of parameters on the card, bit for bit on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.local_training import LocalTrainer
from peer.training.plan.card_plan import CardPlan, Precision
from peer.training.replica.away_replica import AwayReplica, replica_on
from peer.training.replica.replica import Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.model_config import model_schema
from tests.peer.pretended_card import PretendedCard
from tests.peer.stage_world import ANCHOR_N as STAGED_ANCHOR_N
from tests.peer.stage_world import STAGES, micro_batch, part_of, stage_model, tokens
from tests.peer.training_world import training_plan
from tests.peer.whole_snapshot import snapshot_of

MODEL = LlamaConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=64, context_tokens=16)
SCHEMA = model_schema(MODEL)
ANCHOR_N = genesis_anchor(SCHEMA, 1)
TOKENS_BT = torch.randint(MODEL.vocab_size, (4, 17), generator=torch.Generator().manual_seed(3))
CPU = torch.device("cpu")
AWAY = CardPlan(offload="all", checkpointing="full")


def _replica(plan: CardPlan, optimizer: str = "adamw") -> Replica:
    inner = InnerSection.model_validate({"learning_rate": 0.01, "batch_tokens": 64, "optimizer": optimizer})
    replica = replica_on(Decoder(MODEL), SCHEMA, inner, plan, CPU)
    _set(replica, ANCHOR_N)
    return replica


def _set(replica: Replica, values_N: torch.Tensor) -> None:
    with torch.no_grad():
        for parameter, part in zip(replica.parameters, replica.parts(values_N, SCHEMA), strict=True):
            parameter.copy_(part)


def _loss(replica: Replica, rows: slice = slice(None)) -> torch.Tensor:
    assert isinstance(replica.model, Decoder)
    with replica.computing():
        return replica.model.loss(TOKENS_BT[rows, :-1], TOKENS_BT[rows, 1:])


def _step(replica: Replica) -> tuple[float, float]:
    """Of two micro-batches. Returns its loss and the norm of its gradient."""
    losses = [_loss(replica, rows) * 0.5 for rows in (slice(0, 2), slice(2, 4))]
    for loss in losses:
        replica.backward(loss)
    found = replica.finish([loss.detach() for loss in losses], 0.5)
    replica.step(0.01)
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_clipped_steps_are_those_of_parameters_on_the_card_bit_for_bit(precision: Precision, optimizer: str) -> None:
    beside = _replica(CardPlan(precision=precision, checkpointing="full"), optimizer)
    away = _replica(AWAY.model_copy(update={"precision": precision}), optimizer)
    assert isinstance(away, AwayReplica)
    assert [_step(away) for _ in range(3)] == [_step(beside) for _ in range(3)]
    assert all(map(torch.equal, away.parameters, beside.parameters))
    assert all(map(torch.equal, away.optimizer.moments(), beside.optimizer.moments()))


def test_values_that_are_set_between_steps_are_those_of_the_next_pass() -> None:
    away, beside = _replica(AWAY), _replica(CardPlan())
    for replica in (away, beside):
        _step(replica)
        _set(replica, 2.0 * ANCHOR_N)
    assert torch.equal(_loss(away), _loss(beside))


def test_matrices_of_layers_lie_on_the_card_in_the_type_of_products_and_no_gradient_stays_there() -> None:
    away = _replica(AWAY.model_copy(update={"precision": "bf16"}))
    narrow = {name for name, each in away.model.named_parameters() if each.dtype == torch.bfloat16}
    assert narrow == {spec.name for spec in SCHEMA.tensors if len(spec.shape) == 2 and spec.name.startswith("layers")}
    assert {each.dtype for each in away.parameters} == {torch.float32}
    away.backward(_loss(away))
    assert all(each.grad is None for each in away.model.parameters())
    assert all(each.grad is not None and each.grad.dtype == torch.float32 for each in away.parameters)


def test_other_parameters_stand_in_without_more_of_the_cards_memory() -> None:
    away, beside = _replica(AWAY), _replica(CardPlan())
    others = away.parts(2.0 * ANCHOR_N, SCHEMA)
    _set(beside, 2.0 * ANCHOR_N)
    with PretendedCard() as card, away.standing_in(others):
        assert card.peak_bytes == 0
    with away.standing_in(others):
        assert torch.equal(_loss(away), _loss(beside))
    _set(beside, ANCHOR_N)
    assert torch.equal(_loss(away), _loss(beside)), "its own are back"


def test_a_step_that_is_not_taken_and_a_pass_that_is_given_up_leave_nothing_behind() -> None:
    away, beside = _replica(AWAY), _replica(CardPlan())
    away.backward(_loss(away) * float("nan"))
    assert not torch.isfinite(away.clip(1.0))
    away.skip_step()
    away.backward(_loss(away))
    away.discard()
    assert all(each.grad is None for each in away.parameters)
    assert _step(away) == _step(beside)


@pytest.mark.parametrize(
    "kind", [{}, {"mixture": MixtureConfig(num_experts=3, ffn_dim=12), "experts": (0, 2)}], ids=["data", "experts"]
)
def test_a_training_process_obeys_with_its_parameters_away_as_with_them_on_the_card(
    tmp_path: Path, kind: dict[str, object]
) -> None:
    found = []
    for plan in (CardPlan(), CardPlan(offload="all")):
        trainer = LocalTrainer(training_plan(tmp_path, card_plan=plan, **kind))
        anchor_N = genesis_anchor(trainer.schema, 1)
        trainer.load(anchor_N, 0)
        trainer.step()
        begin, stop = trainer.units.spans[0]
        trainer.shift(torch.full((stop - begin,), 1e-3), trainer.plan.inner.batch_tokens, 100)
        trainer.keep(0, [(5, 400, 0.5)])
        counters = trainer.step()
        found.append((_theta(trainer), counters, trainer.evaluate(anchor_N), _theta(trainer)))
    (theta_N, *others, after_N), (other_N, *same, _) = found
    assert torch.equal(theta_N, other_N)
    assert torch.equal(theta_N, after_N)
    assert others == same


def _theta(trainer: LocalTrainer) -> torch.Tensor:
    """(N,) of all units."""
    return torch.cat([trainer.theta(place) for place in range(len(trainer.units.spans))])


def test_the_search_for_the_micro_batch_leaves_nothing_behind(tmp_path: Path) -> None:
    trainer = LocalTrainer(training_plan(tmp_path, card_plan=CardPlan(offload="all"), micro_batch=0))
    anchor_N = genesis_anchor(trainer.schema, 1)
    trainer.load(anchor_N, 0)
    trainer.find_micro_batch()
    assert trainer.micro_batch > 0
    assert torch.equal(trainer.theta(), anchor_N)
    assert trainer.moments_bytes == 0, "they are not on the card"


def test_a_stage_does_so_too() -> None:
    found = []
    for plan in (CardPlan(), CardPlan(offload="all")):
        trainer = StageTrainer(
            stage_model(2, torch.float32),
            InnerSection(learning_rate=0.01, batch_tokens=16),
            most_kept=1,
            plan=plan,
            device=CPU,
        )
        trainer.load(part_of(STAGED_ANCHOR_N, 2))
        arrived = torch.linspace(-1.0, 1.0, 2 * 8 * 16).view(2, 8, 16)
        for step in range(2):
            batch = micro_batch(step=step)
            trainer.passes.forward(batch, trainer.placed(arrived), targets_BT=tokens(step)[:, 1:])
            trainer.passes.backward(batch)
            trainer.take_step(trainer.gradient_square(), 0.01)
        found.append(snapshot_of(trainer))
    beside, away = found
    assert STAGES.is_last(2)
    assert torch.equal(away.theta_N, beside.theta_N)
    assert all(map(torch.equal, away.moments, beside.moments))
