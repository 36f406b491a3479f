"""Records steps of the training process with torch.profiler, writes the trace and its summary, and never ends training."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from peer.machine.device import choose_device, is_on_card
from peer.training.plan.card_memory_core import CARD_LOGITS, CPU_LOGITS, CardLoad, MemoryNeed, memory_need
from peer.training.plan.card_report import CardReport
from peer.training.profiling.kernels_core import longest, seconds_of
from peer.training.profiling.profile_summary import (
    MOST_STEPS,
    MOST_TRACE_BYTES,
    SUMMARY_FILE,
    TRACE_FILE,
    Kernel,
    MemoryPart,
    ProfileSummary,
)
from peer.training.worker_channel import mapping_bytes
from protocol.run.training_sections import InnerSection

if TYPE_CHECKING:
    from peer.training.local_training import LocalTrainer

RECORDS_FOR_S: Final = 120.0
"""Steps are recorded for so long at most; at least one is."""

_MICRO: Final = 1e-6
_LONGEST_NAME: Final = 400


@dataclass(frozen=True, slots=True)
class ProfileSubject:
    """The training that is profiled.

    Attributes:
        report: how the device trains.
        moments_bytes: of the optimizer, once they exist.
        round_bytes: of the vectors that this process shares with its daemon.
    """

    device: torch.device
    load: CardLoad
    inner: InnerSection
    report: CardReport
    micro_batch: int
    moments_bytes: int
    round_bytes: int


def subject_of(trainer: LocalTrainer) -> ProfileSubject:
    """The training of this process."""
    plan = trainer.plan
    return ProfileSubject(
        device=choose_device(plan.device),
        load=plan.load,
        inner=plan.inner,
        report=trainer.card.report(trainer.micro_batch),
        micro_batch=trainer.micro_batch,
        moments_bytes=trainer.moments_bytes,
        round_bytes=mapping_bytes(trainer.schema.num_elements),
    )


class StepProfile:
    """One recording. Made between two steps; `stepped` is called after each step that follows, and writes the files at the end.

    Args:
        folder: of the files. It exists, and older files in it are replaced.
        num_steps: to record, 1 to MOST_STEPS.
        request: number of the request, for the summary.
    """

    def __init__(self, subject: ProfileSubject, folder: Path, num_steps: int, request: str) -> None:
        self._subject, self._folder, self._request = subject, folder, request
        self._left = max(1, min(num_steps, MOST_STEPS))
        self._steps, self._tokens, self._wall_s = 0, 0, 0.0
        self._is_card = is_on_card(subject.device)
        self._profiler: Any = None

    def begin(self) -> bool:
        """Begin to record. False if torch cannot, with the reason in the summary."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._subject.device.type == "cuda" else [])]
        try:
            if self._subject.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._subject.device)
            recorder = profile(activities=activities)
            recorder.start()
        except (RuntimeError, OSError) as error:
            self.give_up(f"torch cannot record: {_line(error)}")
            return False
        self._profiler = recorder
        return True

    def stepped(self, busy_s: float, tokens: int) -> bool:
        """Count a step that took so long and trained so many tokens: 0 for one that was given up, which only takes time. True if the
        recording is over; its files are written then.
        """
        self._steps, self._tokens = self._steps + (tokens > 0), self._tokens + tokens
        self._wall_s += busy_s
        if self._steps < self._left and self._wall_s < RECORDS_FOR_S:
            return False
        try:
            self._profiler.stop()
            kernels = _kernels(self._profiler, is_card=self._is_card)
            trace_bytes = self._write_trace()
            self._write(self._summary(kernels, trace_bytes))
        except (RuntimeError, OSError, ValueError) as error:
            self._write_problem(f"the profile cannot be written: {_line(error)}")
        self._profiler = None
        return True

    def give_up(self, reason: str) -> None:
        """End the recording without a profile."""
        if self._profiler is not None:
            with suppress(RuntimeError):
                self._profiler.stop()
            self._profiler = None
        self._write_problem(reason)

    def _write_trace(self) -> int:
        """Bytes of the trace; 0 if it is so large that no viewer opens it. A worker that dies meanwhile leaves no half file."""
        target, temporary = self._folder / TRACE_FILE, self._folder / f"{TRACE_FILE}.unfinished"
        target.unlink(missing_ok=True)
        self._profiler.export_chrome_trace(str(temporary))
        num_bytes = temporary.stat().st_size
        if num_bytes > MOST_TRACE_BYTES:
            temporary.unlink()
            return 0
        os.replace(temporary, target)
        return num_bytes

    def _summary(self, kernels: Sequence[Kernel], trace_bytes: int) -> ProfileSummary:
        subject, report = self._subject, self._subject.report
        return ProfileSummary(
            request=self._request,
            device=str(subject.device),
            plan=report.reason[:_LONGEST_NAME],
            num_steps=self._steps,
            tokens=self._tokens,
            wall_s=self._wall_s,
            kernel_s=sum(kernel.total_s for kernel in kernels),
            product_s=seconds_of(kernels, "product"),
            attention_s=seconds_of(kernels, "attention"),
            copy_s=seconds_of(kernels, "copy"),
            flops_per_token=report.flops_per_token,
            peak_flops=report.peak_flops,
            kernels=longest(kernels),
            memory=_memory(subject, self._peak_bytes(), is_card=self._is_card),
            trace_bytes=trace_bytes,
        )

    def _peak_bytes(self) -> int | None:
        """The most that training took of the card in these steps; None where nothing counts it."""
        device = self._subject.device
        return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None

    def _write_problem(self, reason: str) -> None:
        with suppress(OSError):  # then the command tells that nothing came
            self._write(ProfileSummary(request=self._request, problem=reason[:_LONGEST_NAME]))

    def _write(self, summary: ProfileSummary) -> None:
        temporary = self._folder / f"{SUMMARY_FILE}.unfinished"
        temporary.write_text(json.dumps(summary.model_dump(mode="json")) + "\n", encoding="utf8")
        os.replace(temporary, self._folder / SUMMARY_FILE)


def _kernels(recorder: Any, *, is_card: bool) -> list[Kernel]:
    """All kernels of the card, or operations on the CPU, with the time that is their own."""
    found = []
    for row in recorder.key_averages():
        micros = float(row.self_device_time_total if is_card else row.self_cpu_time_total)
        if micros > 0:
            name = str(row.key)[:_LONGEST_NAME]
            found.append(Kernel(name=name, calls=int(row.count), total_s=micros * _MICRO))
    return found


def _memory(subject: ProfileSubject, peak_bytes: int | None, *, is_card: bool) -> tuple[MemoryPart, ...]:
    """Memory by kind. A card that counts its own tells activations: the most that it held, less what lasts."""
    need, place = _need(subject, is_card=is_card), "card" if is_card else "machine"
    moments_place = "machine" if subject.report.plan.offload != "none" else place
    moving = max(need.casts + need.activations + need.loss, need.activations + need.layer, need.tables, need.step)
    lasting = need.parameters + need.gradients + (0 if moments_place != place else subject.moments_bytes)
    is_measured = peak_bytes is not None
    activations = moving if peak_bytes is None else max(0, peak_bytes - lasting)
    return (
        MemoryPart(kind="parameters", num_bytes=need.parameters, place=place),
        MemoryPart(kind="gradients", num_bytes=need.gradients, place=place),
        MemoryPart(kind="moments", num_bytes=subject.moments_bytes, place=moments_place),
        MemoryPart(kind="activations", num_bytes=activations + need.inputs, place=place, is_measured=is_measured),
        MemoryPart(kind="buffers of rounds", num_bytes=subject.round_bytes, place="machine"),
    )


def _need(subject: ProfileSubject, *, is_card: bool) -> MemoryNeed:
    return memory_need(
        subject.load,
        subject.inner,
        max(1, subject.micro_batch),
        subject.report.plan,
        has_fused_norms=is_card,
        chunk_logits=CARD_LOGITS if is_card else CPU_LOGITS,
    )


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
