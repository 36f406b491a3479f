"""The summary of a profile, which the training process writes beside the trace and `potluck profile` reads. Times in seconds."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt

TRACE_FILE: Final = "peer.pt.trace.json"
"""A name that the profiler plugin of TensorBoard finds in a folder."""

SUMMARY_FILE: Final = "summary.json"
SUMMARY_VERSION: Final = 1

MOST_STEPS: Final = 50
MOST_SUMMARY_BYTES: Final = 1 << 20
MOST_TRACE_BYTES: Final = 256 << 20
"""A larger trace is removed, because no viewer opens it."""

NUM_KERNELS: Final = 10
_MOST_TEXT: Final = 400

Text = Annotated[str, Field(max_length=_MOST_TEXT)]
Amount = Annotated[FiniteFloat, Field(ge=0.0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Kernel(_Part):
    """One kernel, or one operation on the CPU, over all recorded steps. `total_s` is without what it calls."""

    name: Text
    calls: NonNegativeInt
    total_s: Amount


class MemoryPart(_Part):
    """Memory of one kind. `place`: "card" or "machine". `is_measured`: counted by the device, or else by the plan's formulas."""

    kind: Text
    num_bytes: NonNegativeInt
    place: Text
    is_measured: bool = False


class ProfileSummary(_Part):
    """A profile in numbers.

    Attributes:
        request: number of the request that asked for it.
        problem: why there is no profile; empty if there is one.
        num_steps, tokens, wall_s: recorded; the profiler itself makes steps a little longer.
        kernel_s: of all kernels, each without what it calls.
        product_s: of it, matrix products; `attention_s` of attention, `copy_s` of copies.
        peak_flops: of the device in its plan's type; None where this is not known.
        kernels: the longest ones, the longest first.
        memory: by kind.
        trace_bytes: of the trace; 0 where it was left out.
    """

    version: int = SUMMARY_VERSION
    request: Text
    problem: Text = ""
    device: Text = ""
    plan: Text = ""
    num_steps: NonNegativeInt = 0
    tokens: NonNegativeInt = 0
    wall_s: Amount = 0.0
    kernel_s: Amount = 0.0
    product_s: Amount = 0.0
    attention_s: Amount = 0.0
    copy_s: Amount = 0.0
    flops_per_token: NonNegativeInt = 0
    peak_flops: Amount | None = None
    kernels: Annotated[tuple[Kernel, ...], Field(max_length=NUM_KERNELS)] = ()
    memory: Annotated[tuple[MemoryPart, ...], Field(max_length=16)] = ()
    trace_bytes: NonNegativeInt = 0

    @property
    def tokens_per_s(self) -> float:
        """Speed of the recorded steps; 0 without any."""
        return self.tokens / self.wall_s if self.wall_s else 0.0

    @property
    def flops_per_s(self) -> float:
        """Operations of the model in a second, as model FLOPs utilisation counts them."""
        return self.tokens_per_s * self.flops_per_token

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, 0 to 1; None where the peak is not known."""
        return self.flops_per_s / self.peak_flops if self.peak_flops else None

    @property
    def busy_share(self) -> float:
        """Share of the time in which kernels ran, 0 to 1. Kernels of several threads count together, up to all of it."""
        return min(1.0, self.kernel_s / self.wall_s) if self.wall_s else 0.0
