"""A round of real trainers: four peers on a text of people, contributions in int8, and how a liar's would differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.codecs import codec_by_name
from averaging.models.llama.config import LlamaConfig
from peer.audits.audit_turns import AuditTurns
from peer.audits.redone_work import ClaimedSteps, RedoneWork
from peer.audits.trainer_state import TrainerState, exchange_state, state_of
from peer.audits.work_audit_core import Finding, Products, compared
from peer.training.local_training import LocalTrainer
from peer.training.replica.exchange_values import exchange_piece
from peer.training.training_plan import TrainingPlan
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.peer.training_world import training_plan
from tests.simulation.signing import HashSigner

CONTEXT, WINDOWS, STEPS, ROUNDS, NUM_PEERS = 64, 1, 16, 12, 4
MODEL = LlamaConfig(dim=32, num_layers=1, num_heads=2, num_kv_heads=2, ffn_dim=64, context_tokens=CONTEXT)
INNER = InnerSection(learning_rate=0.003, batch_tokens=WINDOWS * CONTEXT)
SIGNERS = sorted((HashSigner(b"auditor %d" % number) for number in range(NUM_PEERS)), key=lambda each: each.peer_id)


def _plan(folder: Path) -> TrainingPlan:
    """Training on a text of people: its windows differ, as those of a made one would not."""
    text = (Path(__file__).parents[3] / "LICENSE").read_text()
    return training_plan(folder, text, model=MODEL, inner=INNER, micro_batch=WINDOWS)


def sent(delta_N: torch.Tensor) -> torch.Tensor:
    """A delta as others get it."""
    codec = codec_by_name("int8")
    return codec.decode(codec.encode(delta_N), len(delta_N))


@dataclass(frozen=True, eq=False)
class World:
    """A round that all peers have contributed to, honestly.

    Attributes:
        begun: each one's state when it began the round.
        deltas: (N,) float32 of each, as sent.
    """

    trainers: Sequence[LocalTrainer]
    anchor_N: torch.Tensor
    first_step: int
    begun: Sequence[TrainerState]
    deltas: Sequence[torch.Tensor]

    def redone(self, auditor: int, contributor: int) -> torch.Tensor:
        """The contributor's steps, done again by an auditor beside its training."""
        steps = ClaimedSteps(SIGNERS[contributor].peer_id, self.first_step, STEPS)
        trainer = self.trainers[auditor]
        work = RedoneWork(trainer, steps, self.begun[auditor])
        while not work.advance(5):
            pass
        return work.delta()

    def half_of(self, contributor: int) -> torch.Tensor:
        """The contribution of one that took half of the steps that it claims."""
        steps = ClaimedSteps(SIGNERS[contributor].peer_id, self.first_step, STEPS // 2)
        work = RedoneWork(self.trainers[contributor], steps, self.begun[contributor])
        assert work.advance(STEPS)
        return sent(work.delta())

    def control(self, auditor: int) -> torch.Tensor:
        """As many steps of an auditor on windows of its own choice."""
        work = RedoneWork(
            self.trainers[auditor], ClaimedSteps("a control", self.first_step, STEPS), self.begun[auditor]
        )
        assert work.advance(STEPS)
        return work.delta()

    def finding(self, sent_N: torch.Tensor, redone_N: torch.Tensor, control_N: torch.Tensor) -> Finding:
        """The finding on what a contributor sent."""
        products = [float(a @ b) for a, b in ((sent_N, sent_N), (redone_N, redone_N), (control_N, control_N))]
        found = compared(
            Products(*products, float(sent_N @ redone_N), float(sent_N @ control_N), float(redone_N @ control_N))
        )
        assert found is not None
        return found


def put_state(trainer: LocalTrainer, state: TrainerState) -> None:
    """Continue from a state that stays as it is."""
    copy = replace(
        state, values=[each.clone() for each in state.values], moments=[each.clone() for each in state.moments]
    )
    exchange_state(trainer, copy, exchange_piece())


def _take(trainer: LocalTrainer, num_steps: int) -> None:
    for _ in range(num_steps):
        trainer.step()


def _begin(trainer: LocalTrainer, anchor_N: torch.Tensor) -> TrainerState:
    trainer.load(anchor_N, 0)
    return state_of(trainer)


def _adopted(
    trainer: LocalTrainer, theta_N: torch.Tensor, anchor_N: torch.Tensor, tokens: int, num_over: int
) -> TrainerState:
    """The state of a trainer's next beginning, as the product keeps it: it takes some steps after its snapshot, `theta_N`."""
    turns = AuditTurns(trainer)
    turns.keep_next()
    turns.note_snapshot()
    _take(trainer, num_over)
    if num_over:
        trainer.shift(anchor_N - theta_N, STEPS * INNER.batch_tokens, tokens)
        turns.note_shift(anchor_N - theta_N, STEPS * INNER.batch_tokens)
    else:
        trainer.load(anchor_N, tokens)
        turns.note_load()
    return turns._kept[tokens]


def contributed(folder: Path, *, num_over: int = 0) -> World:
    """The world of one round, honestly contributed to. With `num_over`, so many steps of each round are taken before the commit of the
    one before is adopted.
    """
    plan = _plan(folder)
    trainers = [LocalTrainer(plan.model_copy(update={"peer": each.peer_id})) for each in SIGNERS]
    anchor_N, tokens = genesis_anchor(model_schema(MODEL), 1), 0
    begun = [_begin(trainer, anchor_N) for trainer in trainers]
    num_taken = 0
    for number in range(ROUNDS):
        for trainer in trainers:
            _take(trainer, STEPS - num_taken)
        thetas = [trainer.theta() for trainer in trainers]
        deltas = [sent(anchor_N - theta_N) for theta_N in thetas]
        if number == ROUNDS - 1:
            break
        anchor_N = anchor_N - 0.7 * torch.stack(deltas).mean(0)
        tokens += NUM_PEERS * STEPS * INNER.batch_tokens
        num_taken = num_over
        begun = [
            _adopted(trainer, theta_N, anchor_N, tokens, num_over)
            for trainer, theta_N in zip(trainers, thetas, strict=True)
        ]
    return World(trainers, anchor_N, STEPS * (ROUNDS - 1), begun, deltas)


def lies(world: World, contributor: int, auditor: int) -> dict[str, torch.Tensor]:
    """Contributions of a peer that did not do its assigned work."""
    others = [number for number in range(NUM_PEERS) if number not in (contributor, auditor)]
    noise_N = torch.randn(len(world.anchor_N), generator=torch.Generator().manual_seed(7))
    return {
        "the opposite": -world.deltas[contributor],
        "another's work": world.deltas[others[0]],
        "a copy of the auditor's": world.deltas[auditor],
        "the mean of others": torch.stack([world.deltas[number] for number in others]).mean(0),
        "a copy of another's, made larger": 3.0 * world.deltas[others[0]],
        "half of the steps": world.half_of(contributor),
        "noise": noise_N,
        "zeros": torch.zeros_like(noise_N),
    }
