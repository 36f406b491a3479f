"""Tells what a card's driver means by an error, in one plain line. Pure: words of error messages only.

A card that reported such an error computes nothing more in this process; a new process can begin anew. Sources of the words: NVIDIA's
table of CUDA runtime errors and of Xid errors; AMD's hipError_t; Metal's command buffer errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CardFault:
    """A failure of a card.

    Attributes:
        reason: as a part of a sentence.
        is_gone: the card itself is lost, so that a new process may not find it.
    """

    reason: str
    is_gone: bool = False


_GONE: Final = (
    "device is lost",
    "gpu is lost",
    "device lost",
    "device removed",
    "fallen off the bus",
    "no cuda-capable device",
    "no rocm-capable device",
    "no hip gpus are available",
    "invalid device ordinal",
    "device(s) is/are busy or unavailable",
    "devices are busy or unavailable",
    "system not yet initialized",
    "driver shutting down",
)

_FAULTS: Final = {
    "device-side assert": "a kernel on the card stopped itself (device-side assert)",
    "illegal memory access": "a kernel on the card read or wrote memory that is not its own",
    "illegal address": "a kernel on the card read or wrote memory that is not its own",
    "misaligned address": "a kernel on the card used an address that it cannot",
    "illegal instruction": "the card met an instruction that it does not have",
    "unspecified launch failure": "a kernel on the card failed (unspecified launch failure)",
    "launch timed out": "the system ended a kernel that ran too long on the card",
    "uncorrectable ecc": "the card's memory has an error that it cannot correct",
    "memory access fault": "a kernel on the card read or wrote memory that is not its own",
    "no kernel image": "this torch has no code for the card",
    "cublas_status": "a matrix product failed on the card",
    "cudnn_status": "a library of the card failed",
    "cuda error": "the card's driver reported an error",
    "hip error": "the card's driver reported an error",
    "internal error (0000": "the card's driver reported an error",
}
"""By their words, the special ones first."""

_MOST_DETAIL: Final = 160


def card_fault(error: BaseException) -> CardFault | None:
    """The fault of the card that an error reports; None if it is about something else. Not for errors of memory that ran out."""
    if not isinstance(error, RuntimeError):
        return None
    text = str(error)
    low = text.lower()
    detail = (text.strip().splitlines() or [""])[0][:_MOST_DETAIL]
    if any(words in low for words in _GONE):
        return CardFault(f"the card is lost ({detail})", is_gone=True)
    return next((CardFault(f"{reason} ({detail})") for words, reason in _FAULTS.items() if words in low), None)
