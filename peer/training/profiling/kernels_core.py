"""Sorts kernels by what they do, and says what limits training. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from peer.training.profiling.profile_summary import NUM_KERNELS, Kernel, ProfileSummary

Kind = Literal["product", "attention", "copy", "other"]

_ATTENTION: Final = re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)
_PRODUCT: Final = re.compile(
    r"gemm|cutlass|cublas|magma|::(addmm|mm|bmm|baddbmm|matmul|linear)\b|mkldnn_linear|nvjet|wgmma", re.IGNORECASE
)
_COPY: Final = re.compile(r"memcpy|memset|::(copy_|_to_copy|clone|contiguous|fill_|zero_)\b", re.IGNORECASE)

WAITS_FROM: Final = 0.25
"""Share of the time without any kernel from which waiting is what limits."""

MOSTLY: Final = 0.5


def kind_of(name: str) -> Kind:
    """The work of a kernel, by its name. Attention is asked first, because its kernels multiply matrices, too."""
    if _ATTENTION.search(name):
        return "attention"
    if _PRODUCT.search(name):
        return "product"
    return "copy" if _COPY.search(name) else "other"


def seconds_of(kernels: Sequence[Kernel], kind: Kind) -> float:
    """Seconds of all kernels of a kind."""
    return sum(kernel.total_s for kernel in kernels if kind_of(kernel.name) == kind)


def longest(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels that take most, the longest first."""
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.total_s, kernel.name))[:NUM_KERNELS])


def limit_words(summary: ProfileSummary) -> str:
    """The thing that limits training, in one sentence; empty without a recorded step."""
    if not summary.wall_s or not summary.kernel_s:
        return ""
    waits = 1.0 - summary.busy_share
    if waits >= WAITS_FROM:
        return (
            f"the device waits {waits:.0%} of the time: the model or the micro-batch is small for it, or text, rounds or the "
            "processor hold it up; see the gaps in the trace"
        )
    products = (summary.product_s + summary.attention_s) / summary.kernel_s
    if products >= MOSTLY:
        return f"matrix products and attention take {products:.0%} of the work: the device's arithmetic limits"
    copies = summary.copy_s / summary.kernel_s
    if copies >= 1.0 - products - copies:
        return f"copies take {copies:.0%} of the work: a smaller micro-batch moves less, and compiled layers copy less"
    return (
        f"kernels between the matrix products take {1.0 - products - copies:.0%} of the work: the device's memory limits; "
        "compiled layers and wider models need fewer of them"
    )
