from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.checks import doctor, dry_run
from peer.checks.doctor import run_doctor
from peer.checks.expected_plan import card_of, expected_plan, plan_finding
from peer.checks.machine_core import Level, Torch
from peer.settings.config import PeerConfig
from peer.training.plan.cards_core import Card
from protocol.run.manifest import RunConfig
from tests.peer.checks.test_known_runs import MANIFEST, TO_IT, keep
from tests.peer.checks.test_machine_core import CARD, CUDA_TORCH, FINE, NO_CARD
from tests.peer.training.plan.test_plan_core import MODELS
from tests.protocol.run.test_pipeline_section import pipeline_run

RUN = MANIFEST.config
ON_CPU = Torch("2.13", "", (), False, False, "")


def _of_size(name: str) -> RunConfig:
    return RUN.model_copy(update={"model": MODELS[name]})


def test_the_card_that_would_train_is_told_by_the_readings() -> None:
    assert card_of(CARD, 1 << 34, "auto") == Card("cuda", CARD.name, CARD.memory_total_bytes, CARD.capability)
    assert card_of(CARD, 1 << 34, "cpu") == Card("cpu", "", 1 << 34)
    assert card_of(NO_CARD, 1 << 34, "auto", ON_CPU) == Card("cpu", "", 1 << 34)
    assert card_of(NO_CARD, 1 << 34, "auto", replace(ON_CPU, can_use_cuda=True)) is None, "one of another maker"
    assert card_of(NO_CARD, 1 << 34, "auto") is None


def test_a_model_that_does_not_fit_is_a_warning_with_what_to_do(tmp_path: Path) -> None:
    own, card = PeerConfig(state_dir=tmp_path), Card("cuda", "NVIDIA GeForce RTX 3060", 12 << 30, (8, 6))
    fits = plan_finding(expected_plan(card, _of_size("350M"), own, has_compiler=True))
    assert (fits.level, fits.fix) == (Level.OK, "")
    assert fits.found.startswith("RTX 3060, 12 GB: bf16, compiled")
    misfit = plan_finding(expected_plan(card, _of_size("3B"), own, has_compiler=True))
    assert misfit.level is Level.WARN
    assert "GB are missing" in misfit.found
    assert "smaller model" in misfit.fix


def test_the_owners_wishes_and_limit_hold_before_a_join(tmp_path: Path) -> None:
    own = PeerConfig(state_dir=tmp_path, precision="fp32", compile="off", max_gpu_memory_gb=6.0)
    card = Card("cuda", "NVIDIA GeForce RTX 3060", 12 << 30, (8, 6))
    choice = expected_plan(card, _of_size("136M"), own, has_compiler=True)
    assert (choice.plan.precision, choice.plan.is_compiled, choice.usable_bytes) == ("fp32", False, 6_000_000_000)


def test_of_a_run_of_stages_the_largest_stage_is_told(tmp_path: Path) -> None:
    run, card = pipeline_run(), Card("cuda", "NVIDIA GeForce RTX 3060", 12 << 30, (8, 6))
    choice = expected_plan(card, run, PeerConfig(state_dir=tmp_path), has_compiler=False)
    assert run.pipeline is not None
    assert choice.micro_batch == run.inner.batch_tokens // run.model.context_tokens // run.pipeline.micro_batches
    assert 0 < choice.expected_bytes < choice.usable_bytes


def test_the_doctor_tells_how_the_last_run_would_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path)
    monkeypatch.setattr(doctor, "read_machine", lambda *_arguments, **_options: replace(FINE, torch=CUDA_TORCH))
    monkeypatch.setattr(doctor, "_read_host", lambda *_arguments: None)
    run_doctor(PeerConfig(state_dir=tmp_path), TO_IT.encode(), as_json=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ok    plan")]
    assert " GB: " in line


def test_a_dry_run_tells_how_the_card_would_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path)
    monkeypatch.setattr(dry_run, "read_graphics", lambda *_arguments, **_options: CARD)
    lines = dry_run.dry_run_lines(PeerConfig(state_dir=tmp_path), {}, TO_IT.encode())
    (line,) = [line for line in lines if line.startswith("  card  ")]
    assert " GB: " in line
