"""The trial of a compiler compares one layer with the eager one."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from averaging.models.family import call_layer
from averaging.system.child_python import python_command
from peer.training.plan.card_plan import Precision
from peer.training.replica.compile_trial import MOST_ERROR, error_of
from peer.training.replica.compiler import run_trial
from tests.peer.training.replica.oracle_world import MODEL

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_eager_layer_passes_and_one_that_computes_something_else_does_not(precision: Precision) -> None:
    def wrong(layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
        return call_layer(layer, x_BTD, *shared) * 1.1

    assert error_of(call_layer, MODEL, precision, CPU) == 0.0
    assert error_of(wrong, MODEL, precision, CPU) > MOST_ERROR[precision]


_PRETENDED = """
import sys
from averaging.models.family import call_layer
from peer.training.replica import compile_trial, compiling
compiling._compiled = lambda _call: call_layer
sys.exit(compile_trial.main())
"""


def test_a_trial_that_works_ends_with_nothing_to_say_while_its_parent_lives() -> None:
    task = {"device": "cpu", "precision": "fp32", "family": MODEL.family, "model": MODEL.model_dump(mode="json")}
    assert run_trial(python_command("-c", _PRETENDED, json.dumps(task)), 300.0) == ""
