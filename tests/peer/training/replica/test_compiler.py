"""If a compiler is missing, fails or hangs, the plan goes on without it and a line says why."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from peer.training.plan.card_plan import CardPlan
from peer.training.replica import compiler as compiler_module
from peer.training.replica.compiler import Compiler, run_trial
from tests.peer.training.replica.oracle_world import MODEL

CPU = torch.device("cpu")
PLAN = CardPlan(is_compiled=True, checkpointing="selective")


class Trials:
    """In place of trials in child processes."""

    def __init__(self, reason: str = "") -> None:
        self.reason, self.number = reason, 0
        self.command: list[str] = []

    def __call__(self, command: list[str], within_s: float) -> str:
        self.number += 1
        self.command = command
        return self.reason


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    found = Trials()
    monkeypatch.setattr(compiler_module, "run_trial", found)
    monkeypatch.setattr(compiler_module, "why_no_compiler", lambda _: "")
    for variable in (*compiler_module._CACHES, compiler_module._THREADS_VARIABLE):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return found


def test_a_torch_without_the_function_runs_eagerly_and_says_so(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(compiler_module.torch, "compile")
    plan, note = Compiler(tmp_path).prepared(CardPlan(is_compiled=True), MODEL, CPU)
    assert not plan.is_compiled
    assert "has no torch.compile" in note
    assert trials.number == 0


def test_a_plan_that_does_not_compile_tries_nothing(trials: Trials, tmp_path: Path) -> None:
    assert Compiler(tmp_path).prepared(CardPlan(), MODEL, CPU) == (CardPlan(), "")
    assert trials.number == 0


def test_a_compiler_that_worked_is_not_tried_again_with_the_same_cache(trials: Trials, tmp_path: Path) -> None:
    for _ in range(2):
        assert Compiler(tmp_path / "cache").prepared(PLAN, MODEL, CPU) == (PLAN, "")
    assert trials.number == 1
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")
    Compiler(tmp_path / "cache").prepared(PLAN, MODEL.model_copy(update={"dim": 32}), CPU)
    assert trials.number == 2


def test_after_a_failed_trial_the_rest_of_the_plan_stays(trials: Trials, tmp_path: Path) -> None:
    trials.reason = "the compiler failed: no space in the cache"
    plan, note = Compiler(tmp_path).prepared(PLAN, MODEL, CPU)
    assert plan == PLAN.model_copy(update={"is_compiled": False})
    assert note == "not compiled, the compiler failed: no space in the cache; training goes on more slowly"


def test_a_folder_that_takes_nothing_is_named(trials: Trials, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plan, note = Compiler(tmp_path / "file" / "cache").prepared(PLAN, MODEL, CPU)
    assert not plan.is_compiled
    assert "the folder for compiled code cannot be used: Not a directory" in note


def test_a_disk_that_is_full_runs_layers_eagerly_and_says_so(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    plan, note = Compiler(tmp_path / "cache").prepared(PLAN, MODEL, CPU)
    assert plan == PLAN.model_copy(update={"is_compiled": False})
    assert "the folder for compiled code cannot be used: No space left on device; training goes on" in note


def test_a_cache_that_grew_too_large_is_emptied(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor" / "old").write_bytes(bytes(100))
    Compiler(tmp_path).prepared(PLAN, MODEL, CPU)
    assert (tmp_path / "inductor" / "old").exists()
    monkeypatch.setattr(compiler_module, "MOST_CACHE_BYTES", 99)
    Compiler(tmp_path).prepared(PLAN, MODEL, CPU)
    assert not (tmp_path / "inductor" / "old").exists()


def _fails(compiler: Compiler, error: Exception) -> None:
    with compiler.watched():
        raise error


def test_what_failed_once_is_not_compiled_again_in_this_life_of_the_daemon(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="no kernel"):
        _fails(Compiler(tmp_path), ValueError("no kernel\nand a trace"))
    plan, note = Compiler(tmp_path).prepared(PLAN, MODEL, CPU)
    assert not plan.is_compiled
    assert "the compiler failed: ValueError: no kernel;" in note
    monkeypatch.setattr(compiler_module, "_daemon", lambda: "another")
    assert Compiler(tmp_path).prepared(PLAN, MODEL, CPU) == (PLAN, "")


def test_a_process_that_ended_while_it_compiled_does_not_compile_when_it_is_back(
    trials: Trials, tmp_path: Path
) -> None:
    compiling = Compiler(tmp_path).watched()
    compiling.__enter__()
    assert "the training process ended while it compiled" in Compiler(tmp_path).prepared(PLAN, MODEL, CPU)[1]
    compiling.__exit__(None, None, None)
    assert Compiler(tmp_path).prepared(PLAN, MODEL, CPU) == (PLAN, "")


def test_a_process_heeds_no_mark_of_another_that_compiles_beside_it(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Compiler(tmp_path, process="cuda:0-0"), Compiler(tmp_path, process="cuda:1-0")
    with first.watched():
        assert second.prepared(PLAN, MODEL, CPU) == (PLAN, "")
        with second.watched():
            pass
        (tmp_path / "inductor").mkdir()
        (tmp_path / "inductor" / "now").write_bytes(bytes(100))
        monkeypatch.setattr(compiler_module, "MOST_CACHE_BYTES", 99)
        second.prepared(PLAN, MODEL, CPU)
        assert (tmp_path / "inductor" / "now").exists(), "it is in use"
        again = Compiler(tmp_path, process="cuda:0-0")
        assert not again.prepared(PLAN, MODEL, CPU)[0].is_compiled
    assert again.prepared(PLAN, MODEL, CPU) == (PLAN, "")


def test_the_end_of_another_rank_while_layers_are_compiled_says_nothing_of_the_compiler(
    trials: Trials, tmp_path: Path
) -> None:
    def ends_beside_another() -> None:
        with Compiler(tmp_path).watched(is_of_others=lambda error: "by peer" in str(error)):
            assert Compiler(tmp_path).prepared(PLAN, MODEL, CPU) == (PLAN, ""), "it may be killed after another"
            raise RuntimeError("gloo: Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        ends_beside_another()
    assert Compiler(tmp_path).prepared(PLAN, MODEL, CPU) == (PLAN, "")


def test_the_card_itself_is_tried(trials: Trials, tmp_path: Path) -> None:
    Compiler(tmp_path).prepared(PLAN, MODEL, torch.device("cpu", 3))
    assert json.loads(trials.command[-1])["device"] == "cpu:3"


def test_memory_that_ran_out_says_nothing_of_the_compiler(trials: Trials, tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        _fails(Compiler(tmp_path), MemoryError())
    assert Compiler(tmp_path).prepared(PLAN, MODEL, CPU) == (PLAN, "")


def test_a_process_whose_compiler_hangs_is_given_up_and_the_next_one_says_why(trials: Trials, tmp_path: Path) -> None:
    over = threading.Event()
    with Compiler(tmp_path, within_s=0.01).watched(over.set):
        assert over.wait(60)
        assert "not done after" in Compiler(tmp_path).prepared(PLAN, MODEL, CPU)[1]


def test_a_trial_ends_by_its_code_and_its_last_line_says_why() -> None:
    assert run_trial([sys.executable, "-c", ""], 60) == ""
    assert run_trial([sys.executable, "-c", "print('one'); print('two'); raise SystemExit(1)"], 60).endswith(": two")
    assert "ended with -9" in run_trial(
        [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], 60
    )
    assert "no process could be started" in run_trial(["/nowhere"], 60)


def test_a_trial_that_hangs_is_killed_with_the_processes_that_it_started() -> None:
    before = set(psutil.Process().children(recursive=True))
    hangs = "import subprocess, sys; subprocess.run(['sleep', '3600'])"
    begin_s = time.monotonic()
    assert "not done after 1 s" in run_trial([sys.executable, "-c", hangs], 1.0)
    assert time.monotonic() - begin_s < 60
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
