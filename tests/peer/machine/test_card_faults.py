"""Errors of cards are told apart by their words."""

from __future__ import annotations

import pytest

from peer.machine.card_faults import card_fault
from peer.machine.device import is_out_of_memory


@pytest.mark.parametrize(
    ("text", "reason", "is_gone"),
    [
        ("CUDA error: device-side assert triggered", "device-side assert", False),
        ("CUDA error: an illegal memory access was encountered", "memory that is not its own", False),
        ("CUDA error: misaligned address", "an address that it cannot", False),
        ("CUDA error: unspecified launch failure", "a kernel on the card failed", False),
        ("CUDA error: uncorrectable ECC error encountered", "cannot correct", False),
        ("CUDA error: no kernel image is available for execution", "no code for the card", False),
        ("HIP error: invalid argument", "the card's driver reported an error", False),
        ("Unable to determine the device handle for GPU: GPU is lost", "the card is lost", True),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "the card is lost", True),
        ("No CUDA GPUs are available: no CUDA-capable device is detected", "the card is lost", True),
        ("device is lost", "the card is lost", True),
    ],
)
def test_an_error_of_a_card_is_named_in_one_line(text: str, reason: str, is_gone: bool) -> None:
    fault = card_fault(RuntimeError(f"{text}\nCUDA kernel errors might be asynchronously reported"))
    assert fault is not None
    assert reason in fault.reason
    assert "\n" not in fault.reason
    assert fault.is_gone == is_gone


def test_other_errors_are_not_of_a_card() -> None:
    assert card_fault(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert card_fault(ValueError("CUDA error: device-side assert triggered")) is None


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "HIP out of memory. Tried to allocate 2 GiB",
    ],
)
def test_memory_that_another_program_took_is_memory_that_ran_out(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
