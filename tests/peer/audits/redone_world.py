"""A round of real trainers: four peers on a text of people, and how a liar's contribution would differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.codecs import codec_by_name
from averaging.data.sources.corpus import python_stdlib_documents
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
TEXT_BYTES = 600_000
MODEL = LlamaConfig(dim=32, num_layers=1, num_heads=2, num_kv_heads=2, ffn_dim=64, context_tokens=CONTEXT)
INNER = InnerSection(learning_rate=0.003, batch_tokens=WINDOWS * CONTEXT)
SIGNERS = sorted((HashSigner(b"auditor %d" % number) for number in range(NUM_PEERS)), key=lambda each: each.peer_id)


@dataclass(frozen=True)
class Setting:
    """How the peers of a world train and send.

    Attributes:
        text: that all of them read; where it is short, they read the same windows.
        num_over: steps of a round that are taken before the commit of the one before is adopted.
        feedback: the part of what the codec left out that goes into the next contribution.
    """

    model: LlamaConfig = MODEL
    inner: InnerSection = INNER
    text: str = (Path(__file__).parents[3] / "LICENSE").read_text()
    codec: str = "int8"
    feedback: float = 0.0
    num_steps: int = STEPS
    num_rounds: int = ROUNDS
    num_over: int = 0

    @property
    def round_tokens(self) -> int:
        """Tokens of a contribution."""
        return self.num_steps * self.inner.batch_tokens

    def plan(self, folder: Path) -> TrainingPlan:
        """Training on that text, packed in `folder`."""
        windows = self.inner.batch_tokens // self.model.context_tokens
        return training_plan(folder, self.text, model=self.model, inner=self.inner, micro_batch=windows)

    def sent(self, delta_N: torch.Tensor) -> torch.Tensor:
        """A delta as others get it."""
        codec = codec_by_name(self.codec)
        return codec.decode(codec.encode(delta_N), len(delta_N))


def read_once() -> Setting:
    """A longer text, of which hardly any window is read twice, and steps of several windows: less of a finding is chance then."""
    documents = (each.path.read_bytes() for each in python_stdlib_documents())
    text = b"".join(islice(documents, 40))[:TEXT_BYTES].decode("utf-8", "replace")
    inner = InnerSection(learning_rate=INNER.learning_rate, batch_tokens=4 * CONTEXT)
    return Setting(inner=inner, text=text, num_steps=32, num_rounds=6)


SMALL: Final = Setting()
"""A text of people: its windows differ, as those of a made one would not."""


def sent(delta_N: torch.Tensor) -> torch.Tensor:
    """A delta as others get it in the small world."""
    return SMALL.sent(delta_N)


@dataclass(frozen=True, eq=False)
class World:
    """A round that all peers have contributed to, honestly.

    Attributes:
        begun: each one's state when it began the round.
        deltas: (N,) float32 of each, as sent.
    """

    setting: Setting
    trainers: Sequence[LocalTrainer]
    anchor_N: torch.Tensor
    first_step: int
    begun: Sequence[TrainerState]
    deltas: Sequence[torch.Tensor]

    def redone(self, auditor: int, contributor: int) -> torch.Tensor:
        """The contributor's steps, done again by an auditor beside its training."""
        steps = ClaimedSteps(SIGNERS[contributor].peer_id, self.first_step, self.setting.num_steps)
        trainer = self.trainers[auditor]
        work = RedoneWork(trainer, steps, self.begun[auditor])
        while not work.advance(5):
            pass
        return work.delta()

    def half_of(self, contributor: int) -> torch.Tensor:
        """The contribution of one that took half of the steps that it claims."""
        steps = ClaimedSteps(SIGNERS[contributor].peer_id, self.first_step, self.setting.num_steps // 2)
        work = RedoneWork(self.trainers[contributor], steps, self.begun[contributor])
        assert work.advance(self.setting.num_steps)
        return self.setting.sent(work.delta())

    def control(self, auditor: int) -> torch.Tensor:
        """As many steps of an auditor on windows of its own choice."""
        steps = ClaimedSteps("a control", self.first_step, self.setting.num_steps)
        work = RedoneWork(self.trainers[auditor], steps, self.begun[auditor])
        assert work.advance(self.setting.num_steps)
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
    setting: Setting, trainer: LocalTrainer, theta_N: torch.Tensor, anchor_N: torch.Tensor, tokens: int
) -> TrainerState:
    """The state of a trainer's next beginning, as the product keeps it: it takes some steps after its snapshot, `theta_N`."""
    turns = AuditTurns(trainer)
    turns.keep_next()
    turns.note_snapshot()
    _take(trainer, setting.num_over)
    if setting.num_over:
        trainer.shift(anchor_N - theta_N, setting.round_tokens, tokens)
        turns.note_shift(anchor_N - theta_N, setting.round_tokens)
    else:
        trainer.load(anchor_N, tokens)
        turns.note_load()
    return turns._kept[tokens]


def contributed(folder: Path, setting: Setting = SMALL) -> World:
    """The world of one round, honestly contributed to, after the rounds before it."""
    plan = setting.plan(folder)
    trainers = [LocalTrainer(plan.model_copy(update={"peer": each.peer_id})) for each in SIGNERS]
    anchor_N, tokens = genesis_anchor(model_schema(setting.model), 1), 0
    begun = [_begin(trainer, anchor_N) for trainer in trainers]
    rests = [torch.zeros_like(anchor_N) for _ in trainers]
    num_taken = 0
    for number in range(setting.num_rounds):
        for trainer in trainers:
            _take(trainer, setting.num_steps - num_taken)
        thetas = [trainer.theta() for trainer in trainers]
        whole = [anchor_N - theta_N + rest_N for theta_N, rest_N in zip(thetas, rests, strict=True)]
        deltas = [setting.sent(each) for each in whole]
        if number == setting.num_rounds - 1:
            break
        rests = [setting.feedback * (each - sent_N) for each, sent_N in zip(whole, deltas, strict=True)]
        anchor_N = anchor_N - 0.7 * torch.stack(deltas).mean(0)
        tokens += NUM_PEERS * setting.round_tokens
        num_taken = setting.num_over
        begun = [
            _adopted(setting, trainer, theta_N, anchor_N, tokens)
            for trainer, theta_N in zip(trainers, thetas, strict=True)
        ]
    return World(setting, trainers, anchor_N, setting.num_steps * (setting.num_rounds - 1), begun, deltas)


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
