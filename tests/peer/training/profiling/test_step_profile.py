"""Real recordings of a small model on the CPU, and what happens where they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from averaging.arithmetic.genesis import genesis_anchor
from peer.training.local_training import LocalTrainer
from peer.training.profiling import step_profile
from peer.training.profiling.profile_summary import SUMMARY_FILE, TRACE_FILE, ProfileSummary
from peer.training.profiling.step_profile import StepProfile, subject_of
from peer.training.worker_channel import mapping_bytes
from protocol.tensors.model_config import model_schema
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan


@pytest.fixture
def trainer(tmp_path: Path) -> LocalTrainer:
    found = LocalTrainer(training_plan(tmp_path))
    found.load(genesis_anchor(model_schema(MODEL), 1), 0)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "profile"
    found.mkdir()
    return found


def _summary(folder: Path) -> ProfileSummary:
    return ProfileSummary.model_validate_json((folder / SUMMARY_FILE).read_bytes())


def test_steps_are_recorded_as_a_trace_and_a_summary(trainer: LocalTrainer, folder: Path) -> None:
    recording = StepProfile(subject_of(trainer), folder, 2, "0123")
    assert recording.begin()
    assert not recording.stepped(0.5, trainer.step().tokens_trained)
    assert recording.stepped(0.5, BATCH_TOKENS * bool(trainer.step().step))
    summary = _summary(folder)
    assert (summary.request, summary.problem, summary.num_steps) == ("0123", "", 2)
    assert (summary.tokens, summary.wall_s, summary.tokens_per_s) == (2 * BATCH_TOKENS, 1.0, 2 * BATCH_TOKENS)
    assert summary.flops_per_s == summary.tokens_per_s * summary.flops_per_token > 0
    assert summary.mfu is None
    assert len(summary.kernels) == 10
    assert summary.product_s > 0
    trace = json.loads((folder / TRACE_FILE).read_text())
    assert {event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"} >= {"aten::mm"}
    assert summary.trace_bytes == (folder / TRACE_FILE).stat().st_size
    assert sorted(path.name for path in folder.iterdir()) == sorted([SUMMARY_FILE, TRACE_FILE])


def test_memory_is_told_by_kind_and_by_the_sizes_of_the_model(trainer: LocalTrainer, folder: Path) -> None:
    recording = StepProfile(subject_of(trainer), folder, 1, "r")
    recording.begin()
    recording.stepped(1.0, trainer.step().tokens_trained)
    num_values = model_schema(MODEL).num_elements
    memory = {part.kind: part.num_bytes for part in _summary(folder).memory}
    assert (memory["parameters"], memory["gradients"]) == (4 * num_values, 4 * num_values)
    assert memory["moments"] == trainer.moments_bytes
    assert memory["activations"] > 0
    assert memory["buffers of rounds"] == mapping_bytes(num_values)


def test_a_step_that_was_given_up_takes_time_and_counts_no_token(trainer: LocalTrainer, folder: Path) -> None:
    recording = StepProfile(subject_of(trainer), folder, 1, "r")
    recording.begin()
    assert not recording.stepped(1.0, 0)
    assert recording.stepped(1.0, trainer.step().tokens_trained)
    assert (_summary(folder).num_steps, _summary(folder).wall_s) == (1, 2.0)


def test_a_recording_ends_after_a_while_however_many_steps_are_asked_for(trainer: LocalTrainer, folder: Path) -> None:
    recording = StepProfile(subject_of(trainer), folder, 50, "r")
    recording.begin()
    assert recording.stepped(step_profile.RECORDS_FOR_S, trainer.step().tokens_trained)
    assert _summary(folder).num_steps == 1


def test_a_trace_that_no_viewer_opens_is_left_out(
    trainer: LocalTrainer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_profile, "MOST_TRACE_BYTES", 10)
    (folder / TRACE_FILE).write_text("an older one")
    recording = StepProfile(subject_of(trainer), folder, 1, "r")
    recording.begin()
    recording.stepped(1.0, trainer.step().tokens_trained)
    assert _summary(folder).trace_bytes == 0
    assert [path.name for path in folder.iterdir()] == [SUMMARY_FILE]


def test_a_recording_that_is_given_up_says_why(trainer: LocalTrainer, folder: Path) -> None:
    recording = StepProfile(subject_of(trainer), folder, 3, "r")
    recording.begin()
    recording.give_up("training was paused")
    assert _summary(folder).problem == "training was paused"
    again = StepProfile(subject_of(trainer), folder, 1, "next")
    assert again.begin()
    again.stepped(1.0, trainer.step().tokens_trained)
    assert _summary(folder).problem == ""


def test_a_folder_that_is_gone_ends_no_training(trainer: LocalTrainer, folder: Path) -> None:
    recording = StepProfile(subject_of(trainer), folder / "none", 1, "r")
    recording.begin()
    assert recording.stepped(1.0, trainer.step().tokens_trained)
    assert trainer.step().tokens_trained == 2 * BATCH_TOKENS


def test_torch_that_cannot_record_is_a_problem_and_no_end(
    trainer: LocalTrainer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_arguments: object) -> object:
        raise RuntimeError("Kineto is not here\nand more")

    monkeypatch.setattr(step_profile, "profile", fails)
    assert not StepProfile(subject_of(trainer), folder, 1, "r").begin()
    assert _summary(folder).problem == "torch cannot record: Kineto is not here"
