"""Moments on disk: taken up where they fit, and told why where they do not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from peer.training.local_training import LocalTrainer
from peer.training.replica import moments_file
from peer.training.replica.moments import COMMITS_A_SAVE
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan

ANCHOR_N = genesis_anchor(model_schema(MODEL), 1)
INNERS = {
    "adamw": InnerSection(learning_rate=0.01, batch_tokens=BATCH_TOKENS),
    "muon": InnerSection(learning_rate=0.01, batch_tokens=BATCH_TOKENS, optimizer="muon"),
}


def _trainer(folder: Path, optimizer: str = "adamw", **changes: object) -> LocalTrainer:
    file = folder / "moments.safetensors"
    kept = {"moments_file": file, "moments_within_tokens": 1000, "inner": INNERS[optimizer]}
    trainer = LocalTrainer(training_plan(folder, **{**kept, **changes}))
    trainer.load(ANCHOR_N, 0)
    return trainer


def _moments(trainer: LocalTrainer) -> list[torch.Tensor]:
    return trainer.replica.optimizer.moments()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_process_that_starts_again_continues_with_the_moments_of_the_last(tmp_path: Path, optimizer: str) -> None:
    first = _trainer(tmp_path, optimizer)
    for _ in range(5):
        first.step()
    first.finish()
    second = _trainer(tmp_path, optimizer)
    second.take_up_moments()
    assert second.moments.note == ""
    for kept, own in zip(_moments(second), _moments(first), strict=True):
        assert torch.equal(kept, own.bfloat16().float() if own.numel() > 1 else own)


def test_a_stop_and_a_start_cost_no_loss_where_moments_are_kept(tmp_path: Path) -> None:
    def losses(*, stops: bool) -> float:
        trainer = _trainer(tmp_path)
        for _ in range(60):
            trainer.step()
        if stops:
            trainer.finish()
            theta_N = trainer.theta()
            trainer = _trainer(tmp_path, first_step=60)
            trainer.load(theta_N, 0)
            trainer.take_up_moments()
        return sum(trainer.step().loss_nats or 0.0 for _ in range(50)) / 50

    assert losses(stops=True) == pytest.approx(losses(stops=False), rel=2e-3)


@pytest.mark.parametrize(("now", "is_taken"), [(0, True), (1000, True), (1001, False)])
def test_moments_that_are_too_old_are_not_taken_up(tmp_path: Path, now: int, is_taken: bool) -> None:
    first = _trainer(tmp_path)
    first.step()
    first.finish()
    second = _trainer(tmp_path)
    second.load(ANCHOR_N, now)
    second.take_up_moments()
    assert bool(_moments(second)) == is_taken
    assert ("of the run's tokens old" in second.moments.note) != is_taken


def test_moments_from_a_later_state_of_the_run_are_not_taken_up(tmp_path: Path) -> None:
    first = _trainer(tmp_path)
    first.load(ANCHOR_N, 500)
    first.step()
    first.finish()
    second = _trainer(tmp_path)
    second.take_up_moments()
    assert "of the run's tokens old" in second.moments.note


def test_moments_of_another_optimizer_or_model_are_not_taken_up(tmp_path: Path) -> None:
    first = _trainer(tmp_path)
    first.step()
    first.finish()
    other = _trainer(tmp_path, "muon")
    other.take_up_moments()
    assert "another model or optimizer" in other.moments.note


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "words"])
def test_a_damaged_file_is_told_and_training_begins_without_moments(tmp_path: Path, damage: str) -> None:
    first = _trainer(tmp_path)
    first.step()
    first.finish()
    file = tmp_path / "moments.safetensors"
    data = file.read_bytes()
    flipped = data[:-9] + bytes([data[-9] ^ 0x80]) + data[-8:]
    file.write_bytes({"cut": data[:-5], "flipped": flipped, "empty": b"", "words": b"no moments" * 9}[damage])
    second = _trainer(tmp_path)
    second.take_up_moments()
    assert _moments(second) == []
    assert "moments kept" in second.moments.note
    assert second.step().loss_nats is not None


def test_moments_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.step()
    _moments(trainer)[0].fill_(float("nan"))
    trainer.finish()
    assert not (tmp_path / "moments.safetensors").exists()


def test_they_are_saved_beside_training_at_each_tenth_commit_and_only_for_their_owner_to_read(tmp_path: Path) -> None:
    trainer, file = _trainer(tmp_path), tmp_path / "moments.safetensors"
    trainer.step()
    for _ in range(COMMITS_A_SAVE - 2):
        trainer.shift(torch.zeros_like(ANCHOR_N), 0, 0)
    assert trainer.moments._writer is None
    trainer.shift(torch.zeros_like(ANCHOR_N), 0, 0)
    trainer.moments._wait()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_told_and_the_file_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, file = _trainer(tmp_path), tmp_path / "moments.safetensors"
    trainer.step()
    trainer.finish()
    before = file.read_bytes()

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(moments_file, "save_file", full)
    trainer.step()
    trainer.finish()
    assert "No space left" in trainer.moments.note
    assert file.read_bytes() == before
    assert list(tmp_path.glob("*.new")) == []


def test_a_process_that_only_holds_the_state_neither_loads_moments_nor_saves_any(tmp_path: Path) -> None:
    first, file = _trainer(tmp_path), tmp_path / "moments.safetensors"
    first.step()
    first.finish()
    before = file.read_bytes()
    holder = _trainer(tmp_path, trains=False)
    holder.take_up_moments()
    assert _moments(holder) == []
    holder.finish()
    assert file.read_bytes() == before


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, moments_file=None)
    trainer.step()
    trainer.finish()
    trainer.take_up_moments()
    assert trainer.moments.note == ""
    assert list(tmp_path.glob("*.safetensors")) == []
    first = _trainer(tmp_path)
    first.take_up_moments()
    assert first.moments.note == "no moments were kept"
