"""A training on disk between two pieces of it: tensors in a safetensors file, numbers in its metadata as JSON.

A training that goes on from the file makes the same steps, bit for bit, as one that was not interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from averaging.arithmetic.error_feedback import Feedback, no_residual
from tests.benchmarks.convergence_training import Training, Unit
from tests.benchmarks.learning.round_trace import VECTORS, RoundTrace

Tensors = Mapping[str, torch.Tensor]
NUMBERS: Final = "numbers"


class BadSavedTrainingError(Exception):
    """A file of a training cannot be read or belongs to another one; the message names it and what to do."""


class _Numbers(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UnitNumbers(_Numbers):
    """Those of `convergence_training.Unit`; `norms`: by member and chunk, what error feedback remembers."""

    next_snapshot: int
    applies_at: int
    counted_steps: int
    bytes_sent: float
    num_rounds: int
    norms: list[list[float]]


class TraceNumbers(_Numbers):
    """Those of `round_trace.RoundTrace`."""

    counts: dict[str, int]
    sums: dict[str, float]


class TrainingNumbers(_Numbers):
    """Those of `convergence_training.Training`, and the key of its trial."""

    key: str
    done: int
    committed_steps: int
    cpu_s: float
    curve: list[tuple[float, float]]
    units: list[UnitNumbers]
    trace: TraceNumbers | None


def save(training: Training, path: Path) -> None:
    """Replace the file at once.

    Raises:
        OSError: the disk is full or cannot be written; the file before is still there.
    """
    tensors = {"theta": training.workers.model.theta()}
    tensors |= {f"moment-{n}": each.cpu() for n, each in enumerate(training.workers.optimizer.moments())}
    for number, unit in enumerate(training.units):
        tensors |= {f"unit-{number}-{name}": each for name, each in _unit_tensors(unit).items()}
    trace = training.trace
    if trace is not None:
        tensors |= {f"trace-{name}": each for name in VECTORS if (each := getattr(trace, name)) is not None}
    temporary = path.with_name(f"{path.name}.new")
    try:
        save_file(
            {name: each.contiguous().clone() for name, each in tensors.items()},
            temporary,
            {NUMBERS: _numbers(training).model_dump_json()},
        )
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unit_tensors(unit: Unit) -> dict[str, torch.Tensor]:
    found = {"anchor": unit.anchor_n, "momentum": unit.momentum_n}
    if unit.snapshot_Mn is not None and unit.update_n is not None:
        found |= {"snapshot": unit.snapshot_Mn, "update": unit.update_n}
    return found | {f"residual-{n}": each.residual.values_N for n, each in enumerate(unit.feedbacks or ())}


def _numbers(training: Training) -> TrainingNumbers:
    units = [
        UnitNumbers(
            next_snapshot=unit.next_snapshot,
            applies_at=unit.applies_at,
            counted_steps=unit.counted_steps,
            bytes_sent=unit.bytes_sent,
            num_rounds=unit.num_rounds,
            norms=[list(each.residual.norms) for each in unit.feedbacks or ()],
        )
        for unit in training.units
    ]
    trace = training.trace
    return TrainingNumbers(
        key=training.trial.key,
        done=training.done,
        committed_steps=training.committed_steps,
        cpu_s=training.cpu_s,
        curve=training.curve,
        units=units,
        trace=None if trace is None else TraceNumbers(counts=trace.counts, sums=trace.sums),
    )


def restore(training: Training, path: Path) -> None:
    """Take a training that did not begin to where the file's was left.

    Raises:
        BadSavedTrainingError: the file is damaged, or of another trial or version; delete it to begin that training anew.
    """
    try:
        with safe_open(path, framework="pt") as file:
            numbers = TrainingNumbers.model_validate_json((file.metadata() or {}).get(NUMBERS, ""))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if numbers.key != training.trial.key:
            raise BadSavedTrainingError(f"{path}: it belongs to another training; delete it")
        _take(training, numbers, tensors)
    except (OSError, SafetensorError, ValidationError, KeyError, ValueError, RuntimeError) as error:
        raise BadSavedTrainingError(f"{path}: {error}; expected a training of this version; delete it") from error


def _take(training: Training, numbers: TrainingNumbers, tensors: Tensors) -> None:
    training.done, training.committed_steps = numbers.done, numbers.committed_steps
    training.cpu_s, training.curve = numbers.cpu_s, list(numbers.curve)
    training.workers.model.load(tensors["theta"])
    num_moments = sum(name.startswith("moment-") for name in tensors)
    training.workers.optimizer.load_moments([tensors[f"moment-{n}"] for n in range(num_moments)])
    for number, (unit, its) in enumerate(zip(training.units, numbers.units, strict=True)):
        _take_unit(unit, its, {name: tensors.get(f"unit-{number}-{name}") for name in ("snapshot", "update")})
        unit.anchor_n, unit.momentum_n = tensors[f"unit-{number}-anchor"], tensors[f"unit-{number}-momentum"]
        if unit.feedbacks is not None:
            kept = [tensors[f"unit-{number}-residual-{n}"] for n in range(len(unit.feedbacks))]
            unit.feedbacks = [_fed(*each) for each in zip(unit.feedbacks, kept, its.norms, strict=True)]
    if numbers.trace is not None:
        training.trace = RoundTrace(numbers.trace.counts, numbers.trace.sums)
        for name in VECTORS:
            setattr(training.trace, name, tensors.get(f"trace-{name}"))


def _take_unit(unit: Unit, numbers: UnitNumbers, under_way: Mapping[str, torch.Tensor | None]) -> None:
    unit.next_snapshot, unit.applies_at = numbers.next_snapshot, numbers.applies_at
    unit.counted_steps, unit.bytes_sent, unit.num_rounds = (
        numbers.counted_steps,
        numbers.bytes_sent,
        numbers.num_rounds,
    )
    unit.snapshot_Mn, unit.update_n = under_way["snapshot"], under_way["update"]


def _fed(feedback: Feedback, values_N: torch.Tensor, norms: list[float]) -> Feedback:
    """Origins are not kept: all that was offered is counted at once here, so nothing is built on them."""
    residual = replace(no_residual(feedback.grid), values_N=values_N, norms=tuple(norms))
    return replace(feedback, residual=residual)
