from __future__ import annotations

import pytest
import torch

from peer.device import autocast_dtype, choose_device, is_out_of_memory
from protocol.errors import MachineError


def _only(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_takes_the_fastest_that_is_there(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, chosen: str
) -> None:
    _only(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device("auto").type == chosen
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("wanted", ["cuda", "mps", "abacus"])
def test_a_device_that_is_not_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    _only(monkeypatch, cuda=False, mps=False)
    with pytest.raises(MachineError, match=f"device {wanted} is not available; expected one of: cpu"):
        choose_device(wanted)


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), None), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)])
def test_half_precision_only_where_the_hardware_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert autocast_dtype(torch.device("cuda")) is dtype
    assert autocast_dtype(torch.device("cpu")) is None
    assert autocast_dtype(torch.device("mps")) is None


def test_running_out_of_memory_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(real.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_out_of_memory(ValueError("out of memory"))
