"""Whether this machine can compile layers, and what happens where its compiler fails or hangs: layers run eagerly, and a line says
why.

A compiler is tried in a child process first, on one layer of the run's model. In the training process itself, a mark on the disk
stands while it compiles. If the process ends there, the next one of the same daemon finds the mark and does not compile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import torch

from averaging.system.child_python import CHILD_FOLDER, child_environment, python_command
from peer.machine.device import is_out_of_memory
from peer.machine.torch_extras import why_no_compiler
from peer.training.plan.card_plan import CardPlan
from protocol.tensors.model_config import ModelConfig

COMPILE_WITHIN_S: Final = 90.0
"""For the trial in a child process, and again for the layers of the model."""

MOST_CACHE_BYTES: Final = 2_000_000_000
"""A larger cache is emptied when a training process starts."""

TRIAL_MODULE: Final = "peer.training.replica.compile_trial"
_CACHES: Final = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_THREADS_VARIABLE: Final = "TORCHINDUCTOR_COMPILE_THREADS"
_MOST_THREADS: Final = 4
"""Processes that compile at a time. Each imports torch, and torch would start one for every core."""

_TRIED_NAME: Final = "tried"
_MARK_NAME: Final = "compiling"
_MOST_LINE: Final = 300


class Compiler:
    """The compiler of a training process.

    Args:
        folder: for what is compiled, in the peer's state; None for the places that torch chooses.
        within_s: for the trial, and again for the layers of the model.
        process: a name for this one and those that come after it, where several share the folder: each leaves a mark of its own, and
            heeds no other's, which may be compiling now.
    """

    def __init__(self, folder: Path | None, *, within_s: float = COMPILE_WITHIN_S, process: str = "") -> None:
        self._folder, self._within_s = folder, within_s
        self._mark_name = f"{_MARK_NAME}-{process.replace(':', '-')}" if process else _MARK_NAME

    def prepared(self, plan: CardPlan, model: ModelConfig, device: torch.device) -> tuple[CardPlan, str]:
        """The plan, without compiling where that does not work, and then the reason in one line. May take `within_s`."""
        if not plan.is_compiled:
            return plan, ""
        try:
            reason = _why_torch_cannot() or why_no_compiler(device.type) or self._why_not_again() or self._open_cache()
            reason = reason or self._try(plan, model, device)
        except OSError as error:
            reason = f"the folder for compiled code cannot be used: {error.strerror or error}"
        return (plan.model_copy(update={"is_compiled": False}), not_compiled(reason)) if reason else (plan, "")

    @contextmanager
    def watched(
        self, give_up: Callable[[], None] | None = None, is_of_others: Callable[[Exception], bool] | None = None
    ) -> Iterator[None]:
        """Mark on the disk that this process compiles, and give the process up if the block takes longer than `within_s`.

        Args:
            give_up: ends the process and its compilers; None for just that.
            is_of_others: given where the block takes part in passes of several processes. The end of another one ends this one too,
                and says nothing of the compiler; this tells whether an error is only that.
        """
        if is_of_others is None:
            self._mark("the training process ended while it compiled")

        def over() -> None:
            self._mark(f"the compiler was not done after {self._within_s:.0f} s")
            (give_up or _end_at_once)()

        timer = threading.Timer(self._within_s, over)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            is_innocent = is_out_of_memory(error) or (is_of_others is not None and is_of_others(error))
            self._mark("" if is_innocent else f"the compiler failed: {one_line(error)}")
            raise
        else:
            self._mark("")
        finally:
            timer.cancel()

    # --- what is remembered on the disk ---

    def _mark(self, reason: str) -> None:
        """Leave a reason for the next training processes of this daemon; remove it if it is empty."""
        if self._folder is None:
            return
        mark = self._folder / self._mark_name
        with suppress(OSError):  # a full disk; the daemon's patience still ends a compiler that hangs
            if reason:
                mark.write_text(json.dumps({"daemon": _daemon(), "reason": reason}))
            else:
                mark.unlink(missing_ok=True)

    def _why_not_again(self) -> str:
        return "" if self._folder is None else _reason_in(self._folder / self._mark_name)

    def _open_cache(self) -> str:
        """Make the folders of the cache, name them to torch, and empty them if they are too large."""
        os.environ.setdefault(_THREADS_VARIABLE, str(min(_MOST_THREADS, os.cpu_count() or 1)))
        if self._folder is None:
            return ""
        others = (mark for mark in self._folder.glob(f"{_MARK_NAME}*") if mark.name != self._mark_name)
        if _bytes_in(self._folder) > MOST_CACHE_BYTES and not any(_reason_in(mark) for mark in others):
            shutil.rmtree(self._folder, ignore_errors=True)  # another process may be at it, too
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for variable, name in _CACHES.items():
            os.environ.setdefault(variable, str(self._folder / name))
        return ""

    # --- the trial ---

    def _try(self, plan: CardPlan, model: ModelConfig, device: torch.device) -> str:
        """Why a child process could not compile a layer of this model; empty if it could, now or with the same cache earlier."""
        task = json.dumps(
            {
                "device": str(device),
                "precision": plan.precision,
                "family": model.family,
                "model": model.model_dump(mode="json"),
            }
        )
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        key = hashlib.sha256(f"{torch.__version__} {name} {task}".encode()).hexdigest()
        tried = None if self._folder is None else self._folder / _TRIED_NAME
        if tried is not None and tried.exists() and key in tried.read_text().split():
            return ""
        reason = run_trial(python_command("-m", TRIAL_MODULE, task), self._within_s)
        if not reason and tried is not None:
            with tried.open("a") as file:
                file.write(key + "\n")
        return reason


def run_trial(command: list[str], within_s: float) -> str:
    """Run a child process that ends with 0 if it could compile. Returns why not, in one line. All of its processes are gone then."""
    with tempfile.TemporaryFile() as said:
        try:
            # the child ends when its standard input does, with this process
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                cwd=CHILD_FOLDER,
            )
        except OSError as error:
            return f"no process could be started to try the compiler ({error.strerror})"
        with process:
            try:
                code = process.wait(within_s)
            except subprocess.TimeoutExpired:
                _kill(psutil.Process(process.pid))
                return f"the compiler was not done after {within_s:.0f} s"
        if code == 0:
            return ""
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    return f"the compiler failed: {lines[-1][:_MOST_LINE] if lines else f'its process ended with {code}'}"


def _why_torch_cannot() -> str:
    return "" if callable(getattr(torch, "compile", None)) else f"torch {torch.__version__} has no torch.compile"


def not_compiled(reason: str) -> str:
    """The line for people about layers that run eagerly for this reason."""
    return f"not compiled, {reason}; training goes on more slowly"


def one_line(error: BaseException) -> str:
    """The kind of an error and its first line, of a readable length."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_MOST_LINE]


def _reason_in(mark: Path) -> str:
    """The reason that a process of this daemon left; empty if there is none."""
    try:
        found = json.loads(mark.read_text())
        return str(found["reason"]) if found["daemon"] == _daemon() else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _daemon() -> str:
    """The parent process, and no later process with its number."""
    try:
        return f"{os.getppid()} {psutil.Process(os.getppid()).create_time()}"
    except psutil.Error:
        return f"{os.getppid()}"


def _end_at_once() -> None:
    own = psutil.Process()
    for child in own.children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os._exit(1)


def _kill(process: psutil.Process) -> None:
    for each in (*process.children(recursive=True), process):
        with suppress(psutil.Error):
            each.kill()


def _bytes_in(folder: Path) -> int:
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed in the meantime
                found += os.stat(Path(path, name), follow_symlinks=False).st_size
    return found
