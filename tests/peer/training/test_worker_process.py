"""The training process that is started before there is anything for it to do."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import trio

from averaging.arithmetic.genesis import genesis_anchor
from peer.training import worker_process
from peer.training.trainer import WorkerTrainer, open_worker_trainer
from peer.training.worker_process import early_worker
from protocol.tensors.model_config import model_schema
from tests.peer.training_world import MODEL, training_plan

COMMAND = ["-P", "-m", "peer.worker"]


def _workers() -> list[psutil.Process]:
    """Those that were started. A program's arguments are told a moment after it has begun."""
    deadline_s = time.monotonic() + 100
    while time.monotonic() < deadline_s:
        if found := [child for child in psutil.Process().children() if child.cmdline()[1:4] == COMMAND]:
            return found
    return []


async def _until_training(trainer: WorkerTrainer) -> None:
    with trio.fail_after(120):
        while trainer.progress().tokens_trained < 64:
            await trio.sleep(0.02)


async def test_the_early_worker_is_the_first_one_and_a_ctrl_c_while_it_imports_is_not_for_it(tmp_path: Path) -> None:
    with early_worker() as early:
        (started,) = _workers()
        os.kill(started.pid, signal.SIGINT)
        async with open_worker_trainer(
            training_plan(tmp_path), genesis_anchor(model_schema(MODEL), 1), early
        ) as trainer:
            await _until_training(trainer)
            assert trainer.worker_pid == started.pid
            assert trainer.progress().restarts == 0
        assert not started.is_running()


async def test_an_early_worker_that_died_before_it_was_needed_is_brought_back(tmp_path: Path) -> None:
    with early_worker() as early:
        (started,) = _workers()
        started.kill()
        async with open_worker_trainer(
            training_plan(tmp_path), genesis_anchor(model_schema(MODEL), 1), early
        ) as trainer:
            await _until_training(trainer)
            assert trainer.progress().restarts == 1


def test_an_early_worker_that_nobody_took_ends_with_its_block() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with early_worker():
        (started,) = _workers()
    assert not started.is_running()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_without_an_early_worker_its_user_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    descriptors = len(os.listdir("/proc/self/fd"))
    with early_worker() as early:
        assert early is None
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_cwd_shadow_the_worker_runs_nothing_from_the_folder_in_which_join_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("protocol", "peer", "averaging"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker_process, "WORKER_MODULE", "protocol.errors")  # light, and ends by itself
    with open(tmp_path / "memory", "w+b") as memory:
        started = worker_process.start_worker(memory.fileno())
    started.channel.close()
    assert started.process.wait(60) == 0


def test_the_profiler_of_torch_writes_nothing_to_the_peers_screen_unless_its_owner_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    assert worker_process._environment()["KINETO_LOG_LEVEL"] == "6"
    monkeypatch.setenv("KINETO_LOG_LEVEL", "0")
    assert worker_process._environment()["KINETO_LOG_LEVEL"] == "0"
