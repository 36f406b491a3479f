"""A profile for people: lines, and a picture of the memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from averaging.curves.svg_core import Sheet, svg_document, svg_text
from peer.training.profiling.kernels_core import limit_words
from peer.training.profiling.profile_summary import MemoryPart, ProfileSummary
from protocol.tables import in_bytes, printable, several, shortened, whole

_NAME_WIDTH: Final = 60
_WIDTH: Final = 720
_ROW: Final = 34
_TOP: Final = 50
_LABEL: Final = 150
_VALUE: Final = 110
_COLOURS: Final = ("#2266aa", "#cc6633", "#558844", "#aa4477", "#777777")


def profile_lines(summary: ProfileSummary) -> list[str]:
    """The numbers, the longest kernels, the memory, and what limits."""
    if summary.problem:
        return [printable(f"no profile: {summary.problem}")]
    steps, speed = several(summary.num_steps, "step"), whole(summary.tokens_per_s)
    lines = [
        f"steps     {steps}, {whole(summary.tokens)} tokens in {summary.wall_s:.2f} s: {speed} tokens/s while recorded",
        f"plan      {summary.plan}",
        f"work      {_work(summary)}",
        f"limit     {limit_words(summary) or 'not known'}",
        "kernels   share    calls  each",
        *_kernels(summary),
        "memory",
        *_memory(summary.memory),
    ]
    return [printable(line) for line in lines]


def memory_picture(summary: ProfileSummary) -> str:
    """Bars in an SVG document, one for each kind of memory."""
    parts, most = summary.memory, max((part.num_bytes for part in summary.memory), default=1) or 1
    height, room = _TOP + _ROW * len(parts) + 12, _WIDTH - _LABEL - _VALUE - 20
    rows = list[str]()
    for number, part in enumerate(parts):
        y, length = _TOP + _ROW * number, max(1.0, room * part.num_bytes / most)
        colour = _COLOURS[number % len(_COLOURS)]
        rows.append(f'<text x="12" y="{y + 16}">{svg_text(part.kind)}</text>')
        rows.append(f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="22" fill="{colour}"/>')
        told = f"{in_bytes(part.num_bytes)}, {part.place}"
        rows.append(f'<text x="{_LABEL + length + 8:.1f}" y="{y + 16}">{svg_text(told)}</text>')
    sheet = Sheet(_WIDTH, height, font_px=13, title_x=12, title_y=28)
    return svg_document(sheet, f"memory of training on {summary.device}", rows)


def _work(summary: ProfileSummary) -> str:
    mfu = f"{summary.mfu:.1%} of the device's peak" if summary.mfu is not None else "the device's peak is not known"
    return f"{summary.flops_per_s / 1e12:.3g} TFLOP/s of the model, {mfu}; kernels run {summary.busy_share:.0%} of the time"


def _kernels(summary: ProfileSummary) -> list[str]:
    lines = []
    for kernel in summary.kernels:
        share = kernel.total_s / summary.kernel_s if summary.kernel_s else 0.0
        each_ms = 1e3 * kernel.total_s / max(1, kernel.calls)
        lines.append(
            f"          {share:5.1%}  {kernel.calls:7}  {each_ms:8.3f} ms  {shortened(kernel.name, _NAME_WIDTH)}"
        )
    return lines


def _memory(parts: Sequence[MemoryPart]) -> list[str]:
    width = max((len(part.kind) for part in parts), default=0)
    return [
        f"          {part.kind:<{width}}  {in_bytes(part.num_bytes):>9}  of the {part.place}, "
        f"{'measured' if part.is_measured else 'by its sizes'}"
        for part in parts
    ]
