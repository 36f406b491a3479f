"""Pictures of time against size: bars for a terminal, and an SVG file. Pure: numbers in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

from averaging.curves.svg_core import Sheet, svg_document
from protocol.estimates.estimates import SECONDS_PER_DAY
from protocol.tables import duration, least_duration, printable, short_count

_BAR: Final = 40
_MOST_ROWS: Final = 16

_WIDTH: Final = 720
_HEIGHT: Final = 420
_LEFT: Final = 80
_RIGHT: Final = 20
_TOP: Final = 46
_BOTTOM: Final = 52
_SHEET: Final = Sheet(_WIDTH, _HEIGHT, font_px=12, title_x=_LEFT, title_y=26)


@dataclass(frozen=True, slots=True)
class TimePoint:
    """A model and the days that it takes. Both are above 0."""

    num_values: int
    days: float


def text_plot(points: Sequence[TimePoint], title: str) -> list[str]:
    """A row a size, with a bar as long as the logarithm of its time. Sizes between are left out where there are many."""
    if not points:
        return []
    every = ceil(len(points) / _MOST_ROWS)
    rows = points[::every]
    low, high = _ends([point.days for point in rows])
    lines = [printable(title)]
    for point in rows:
        length = round(_BAR * (log10(point.days) - low) / (high - low))
        shown = least_duration(point.days * SECONDS_PER_DAY)
        lines.append(f"  {short_count(point.num_values):>7}  {shown:>12}  {'#' * max(1, length)}")
    return lines


def svg_plot(points: Sequence[TimePoint], title: str) -> str:
    """A line in an SVG document, both axes logarithmic."""
    x_low, x_high = _ends([float(point.num_values) for point in points])
    y_low, y_high = _ends([point.days for point in points])
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x_of(values: float) -> float:
        return _LEFT + across * (log10(values) - x_low) / (x_high - x_low)

    def y_of(days: float) -> float:
        return _TOP + down * (1.0 - (log10(days) - y_low) / (y_high - y_low))

    parts = list[str]()
    for power in range(round(x_low), round(x_high) + 1):
        x = x_of(10.0**power)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#dddddd"/>')
        label = short_count(10.0**power)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>')
    for power in range(round(y_low), round(y_high) + 1):
        y = y_of(10.0**power)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        label = duration(10.0**power * SECONDS_PER_DAY)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    line = " ".join(f"{x_of(point.num_values):.1f},{y_of(point.days):.1f}" for point in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2266aa" stroke-width="2"/>')
    parts.append(
        f'<text x="{_LEFT + across / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">values of the model</text>'
    )
    return svg_document(_SHEET, title, parts)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Whole powers of ten around the values, never equal."""
    if not values:
        return 0.0, 1.0
    low, high = float(floor(log10(min(values)))), float(ceil(log10(max(values))))
    return low, max(high, low + 1.0)
