"""A replica with a pretended compiler: layers run by it, or eagerly where it fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from averaging.models.family import call_layer
from peer.training.plan.card_plan import CardPlan, Checkpointing
from peer.training.replica import compiling
from peer.training.replica.compiler import Compiler
from tests.peer.training.replica.oracle_world import MODEL, SEQUENCES, Oracle, oracle


class Pretended:
    """In place of torch's compiler."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.calls = error, 0

    def __call__(self, layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return call_layer(layer, x_BTD, *shared)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pretended], Pretended]:
    def put(pretended: Pretended) -> Pretended:
        monkeypatch.setattr(compiling, "_compiled", lambda _call: pretended)
        return pretended

    return put


def _compiled(found: Oracle, folder: Path) -> str:
    return found.replica.compile([lambda: found.loss(0, 2)], Compiler(folder))


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_layers_run_compiled_after_a_first_pass_that_leaves_no_gradient(
    checkpointing: Checkpointing, pretend: Callable[[Pretended], Pretended], tmp_path: Path
) -> None:
    pretended = pretend(Pretended())
    found = oracle("data", CardPlan(is_compiled=True, checkpointing=checkpointing))
    assert _compiled(found, tmp_path) == ""
    assert all(parameter.grad is None for parameter in found.replica.parameters)
    before = pretended.calls
    for grad, plain in zip(found.gradients(128, SEQUENCES), oracle("data").plain_gradients(), strict=True):
        assert float((grad - plain).norm()) <= 1e-5 * float(plain.norm())
    again = 2 if checkpointing == "full" else 1
    assert pretended.calls - before == again * MODEL.num_layers


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TypeError("no such operation\nTraceback"), "TypeError: no such operation"),
        (OSError(errno.ENOSPC, "No space left on device"), "OSError: [Errno 28] No space left on device"),
    ],
    ids=["fails", "cache is full"],
)
def test_layers_run_eagerly_where_the_compiler_fails_and_a_line_says_why(
    error: Exception, reason: str, pretend: Callable[[Pretended], Pretended], tmp_path: Path
) -> None:
    pretended = pretend(Pretended(error))
    found = oracle("data", CardPlan(is_compiled=True))
    note = _compiled(found, tmp_path)
    assert note == f"not compiled, the compiler failed: {reason}; training goes on more slowly"
    assert pretended.calls == 1
    assert found.gradients(128, 2)
    assert pretended.calls == 1


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA error: an illegal memory access was encountered")])
def test_memory_that_ran_out_and_a_card_that_failed_are_no_failure_of_the_compiler(
    error: Exception, pretend: Callable[[Pretended], Pretended], tmp_path: Path
) -> None:
    pretend(Pretended(error))
    with pytest.raises(type(error)):
        _compiled(oracle("data", CardPlan(is_compiled=True)), tmp_path)


def test_other_parameters_are_evaluated_eagerly(pretend: Callable[[Pretended], Pretended], tmp_path: Path) -> None:
    pretended = pretend(Pretended())
    found = oracle("data", CardPlan(is_compiled=True))
    _compiled(found, tmp_path)
    before = pretended.calls
    with found.replica.standing_in(found.replica.parts(found.theta(), found.replica.schema)), torch.no_grad():
        found.loss(0, 1)
    assert pretended.calls == before
    found.loss(0, 1)
    assert pretended.calls == before + MODEL.num_layers
