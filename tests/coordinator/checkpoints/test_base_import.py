"""A checkpoint's weights as the base of a run: in the model's order, rounded to bfloat16, whatever files they are in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from coordinator.checkpoints.base_import import base_weights
from coordinator.checkpoints.weights_import import read_weights
from protocol.errors import ConfigError
from tests.coordinator.checkpoints.test_checkpoints import decoder
from tests.coordinator.checkpoints.test_weights_import import exported


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_base_is_the_checkpoint_rounded_to_bfloat16(
    tmp_path: Path, is_tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.checkpoints.weights_import._VALUES_AT_ONCE", 50)
    config, folder = decoder(is_tied=is_tied), exported(tmp_path, is_tied=is_tied)
    base = base_weights(folder, config)
    bits = np.concatenate(list(base.parts))
    assert len(bits) == base.num_values
    expected_N = read_weights(folder, config).bfloat16()
    assert torch.equal(torch.from_numpy(bits).view(torch.bfloat16), expected_N)


@pytest.mark.parametrize(
    ("value", "line"),
    [(float("nan"), "has values that are not finite"), (3.4e38, "weights beyond the largest bfloat16")],
)
def test_values_that_no_bfloat16_has_are_refused(tmp_path: Path, value: float, line: str) -> None:
    folder = exported(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=line):
        list(base_weights(folder, decoder()).parts)
