"""Work done again on real trainers: four peers, some rounds, contributions in int8; auditors tell assigned work from all other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.codecs import codec_by_name
from averaging.data.packing.packing import Packing, pack
from averaging.data.sources.corpus import Document
from averaging.data.sources.texts import read_files
from averaging.data.tokenizer import ByteTokenizer
from averaging.models.llama.config import LlamaConfig
from coordinator.policy.audited_work_core import KnownVerdict, audited_work, passes, usual_gap
from peer.audits.redone_work import ClaimedSteps, RedoneWork
from peer.audits.work_audit_core import Finding, Products, compared
from peer.training.local_training import LocalTrainer, TrainerState, state_of
from peer.training.training_plan import TrainingPlan
from protocol.errors import LocalProtocolError
from protocol.host.work_verdict import VERDICT_DOMAIN, decode_verdict, encode_verdict, verdict_of
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.simulation.signing import HashSigner, HashVerifier

CONTEXT, WINDOWS, STEPS, ROUNDS, NUM_PEERS = 64, 1, 16, 12, 4
MODEL = LlamaConfig(dim=32, num_layers=1, num_heads=2, num_kv_heads=2, ffn_dim=64, context_tokens=CONTEXT)
INNER = InnerSection(learning_rate=0.003, batch_tokens=WINDOWS * CONTEXT)
RUN, UNIT = RunId(b"r" * 32), UnitName("fragment-0")
SIGNERS = sorted((HashSigner(b"auditor %d" % number) for number in range(NUM_PEERS)), key=lambda each: each.peer_id)


def _plan(folder: Path) -> TrainingPlan:
    """Training on a text of people: its windows differ, as those of a made one would not."""
    text = (Path(__file__).parents[3] / "LICENSE").read_text()
    documents = []
    for name in ("train", "heldout"):
        path = folder / f"{name}.txt"
        path.write_text(text)
        documents.append(Document(name, path, name == "heldout"))
    manifest = pack(
        read_files(documents, is_utf8=False), ByteTokenizer(), folder / "data", Packing(4096, "text", "none")
    )
    return TrainingPlan(
        model=MODEL,
        inner=INNER,
        seed=1,
        peer="peer",
        total_tokens=10_000_000,
        train_shards=tuple(folder / "data" / entry.sha256 for entry in manifest.part("train")),
        heldout_shards=tuple(folder / "data" / entry.sha256 for entry in manifest.part("heldout")),
        device="cpu",
        num_threads=1,
        micro_batch=WINDOWS,
    )


def _sent(delta_N: torch.Tensor) -> torch.Tensor:
    """A delta as others get it."""
    codec = codec_by_name("int8")
    return codec.decode(codec.encode(delta_N), len(delta_N))


@dataclass(frozen=True, eq=False)
class _World:
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
        return _sent(work.delta())

    def finding(self, sent_N: torch.Tensor, redone_N: torch.Tensor, auditor: int) -> Finding:
        """The finding on what a contributor sent."""
        own_N = self.deltas[auditor]
        products = [float(a @ b) for a, b in ((sent_N, sent_N), (redone_N, redone_N), (own_N, own_N))]
        found = compared(Products(*products, float(sent_N @ redone_N), float(sent_N @ own_N)))
        assert found is not None
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> _World:
    plan = _plan(tmp_path_factory.mktemp("text"))
    trainers = [LocalTrainer(plan.model_copy(update={"peer": each.peer_id})) for each in SIGNERS]
    anchor_N, tokens = genesis_anchor(model_schema(MODEL), 1), 0
    for number in range(ROUNDS):
        begun = []
        for trainer in trainers:
            trainer.load(anchor_N, tokens)
            begun.append(state_of(trainer))
            for _ in range(STEPS):
                trainer.step()
        deltas = [_sent(anchor_N - trainer.theta()) for trainer in trainers]
        if number < ROUNDS - 1:
            anchor_N = anchor_N - 0.7 * torch.stack(deltas).mean(0)
            tokens += NUM_PEERS * STEPS * INNER.batch_tokens
    return _World(trainers, anchor_N, STEPS * (ROUNDS - 1), begun, deltas)


def test_training_goes_on_bit_for_bit_after_work_that_was_redone_in_turns(world: _World) -> None:
    trainer = world.trainers[1]
    before = state_of(trainer)
    redone_N = world.redone(1, 0)
    after = state_of(trainer)
    assert all(torch.equal(a, b) for a, b in zip(before.values, after.values, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before.moments, after.moments, strict=True))
    assert (before.counters, before.plan, before.schedule_tokens) == (after.counters, after.plan, after.schedule_tokens)
    whole = RedoneWork(trainer, ClaimedSteps(SIGNERS[0].peer_id, world.first_step, STEPS), world.begun[1])
    assert whole.advance(STEPS)
    assert torch.equal(whole.delta(), redone_N), "turns change nothing"


def test_own_steps_done_again_with_the_moments_of_their_beginning_make_the_same_bytes(world: _World) -> None:
    assert torch.equal(_sent(world.redone(2, 2)), world.deltas[2])


def test_claimed_steps_that_cannot_be_are_refused() -> None:
    for wrong in ((0, 0), (-1, 5), (0, 1 << 21)):
        with pytest.raises(LocalProtocolError, match="steps from step"):
            ClaimedSteps("alice", *wrong)


def _lies(world: _World, contributor: int, auditor: int) -> dict[str, torch.Tensor]:
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


def _verdict(auditor: int, contributor: int, finding: Finding, number: int) -> KnownVerdict:
    """A finding on its way: signed by the auditor, read by the host."""
    root, commit = Root(bytes([contributor]) * 32), CommitId(number.to_bytes(32, "big"))
    signer, accused = SIGNERS[auditor], SIGNERS[contributor].peer_id
    said = verdict_of(UNIT, commit, accused, root, gap=finding.gap, length_ratio=finding.length_ratio)
    sealed = seal(signer, VERDICT_DOMAIN, RUN, number, NEVER_MS, encode_verdict(said))
    envelope = open_envelope(sealed, verifier=HashVerifier(), domain=VERDICT_DOMAIN, run_id=RUN, now_unix_ms=None)
    read = decode_verdict(envelope.payload)
    return KnownVerdict(
        envelope.sender, read.contributor, read.commit, read.gap_ppm / 1e6, read.length_permille / 1e3, float(number)
    )


def test_assigned_work_passes_with_every_auditor_and_makes_a_member_and_other_work_puts_its_peer_aside(
    world: _World,
) -> None:
    """The last peer is a stranger; the others audit each other and it."""
    stranger, number = NUM_PEERS - 1, 0
    verdicts: list[KnownVerdict] = []
    lying: dict[str, list[KnownVerdict]] = {}
    for auditor in range(stranger):
        for contributor in (each for each in range(NUM_PEERS) if each != auditor):
            number += 1
            redone_N = world.redone(auditor, contributor)
            honest = world.finding(world.deltas[contributor], redone_N, auditor)
            verdicts.append(_verdict(auditor, contributor, honest, number))
            if contributor == stranger:
                for name, sent_N in _lies(world, contributor, auditor).items():
                    found = world.finding(sent_N, redone_N, auditor)
                    lying.setdefault(name, []).append(_verdict(auditor, contributor, found, number))
    # the keepers' verdicts about each other come again, as in later rounds, until there are enough for a usual gap
    trusted: set[PeerId] = {signer.peer_id for signer in SIGNERS[:stranger]}
    about = [each for each in verdicts if each.contributor in trusted]
    usual = usual_gap([*about, *about], trusted)
    assert usual is not None
    assert all(passes(each, usual) for each in verdicts)
    own = [each for each in verdicts if each.contributor not in trusted]
    rounds = [replace(each, commit=CommitId(bytes([turn]) * 32)) for turn in range(4) for each in own]
    assert audited_work(rounds, usual).makes_member
    for name, found in lying.items():
        assert audited_work(found, usual).is_doubted, name
        assert sum(passes(each, usual) for each in found) <= 1, "a single auditor may err"
