"""A picture of one round: a lane for training and for each kind of work of each unit, over seconds. Pure: spans in, SVG out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from typing import Final

from averaging.curves.svg_core import Sheet, svg_document, svg_text
from peer.status.tracing.trace_core import TRAINING, Bar, Row, bars_by_lane
from protocol.tables import shortened

MOST_LANES: Final = 40
"""A run of many units has more; the last ones are left out, and a line says how many."""

_WIDTH: Final = 860
_LABEL: Final = 200
_LABEL_LETTERS: Final = 28
_RIGHT: Final = 20
_TOP: Final = 44
_LANE: Final = 22
_BAR: Final = 14
_BOTTOM: Final = 40
_GAP: Final = 0.5
"""Pixels between two bars from which on they are drawn as two."""

_TICKS: Final = 8
_COLOURS: Final = ("#cc6633", "#558844", "#aa4477", "#777777")
_TRAINING_COLOUR: Final = "#2266aa"


def round_picture(spans: Sequence[Row], peer: str) -> str:
    """An SVG document of these spans of one peer. Its size is bounded by its width, however many spans there are."""
    lanes = dict(sorted(bars_by_lane(spans).items(), key=_order))
    shown = dict(list(lanes.items())[:MOST_LANES])
    last_s = max((bar.end_s for bars in lanes.values() for bar in bars), default=0.0) or 1.0
    bottom = _TOP + _LANE * len(shown)
    parts = [*_axis(last_s, bottom), *_lanes(shown, last_s)]
    if more := len(lanes) - len(shown):
        parts.append(f'<text x="12" y="{bottom + 18}">and {more} more</text>')
    sheet = Sheet(_WIDTH, bottom + _BOTTOM, font_px=12, title_x=12, title_y=26)
    return svg_document(sheet, f"the newest round of peer {peer}, in seconds", parts)


def _order(lane: tuple[str, Sequence[Bar]]) -> tuple[bool, float]:
    """Training first, then by the begin of the work, so that a round goes down from the left to the right."""
    name, bars = lane
    return not name.startswith(TRAINING), bars[0].begin_s


def _lanes(lanes: Mapping[str, Sequence[Bar]], last_s: float) -> Iterator[str]:
    for number, (lane, bars) in enumerate(lanes.items()):
        y = _TOP + _LANE * number
        colour = _TRAINING_COLOUR if lane.startswith(TRAINING) else _COLOURS[number % len(_COLOURS)]
        yield f'<text x="12" y="{y + 12}">{svg_text(shortened(lane, _LABEL_LETTERS))}</text>'
        for left, right in _drawn([(_x(bar.begin_s, last_s), _x(bar.end_s, last_s)) for bar in bars]):
            yield f'<rect x="{left:.1f}" y="{y}" width="{max(1.0, right - left):.1f}" height="{_BAR}" fill="{colour}"/>'


def _drawn(ends: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Bars in pixels; those that touch are one. Never more than there are pixels, so that no trace makes a huge file."""
    found = list[tuple[float, float]]()
    for left, right in ends:
        if (found and left - found[-1][0] < 1.0 + _GAP) or (found and left - found[-1][1] < _GAP):
            found[-1] = found[-1][0], max(found[-1][1], right)
        else:
            found.append((left, right))
    return found


def _axis(last_s: float, bottom: int) -> Iterator[str]:
    step_s = _step(last_s / _TICKS)
    for number in range(floor(last_s / step_s) + 1):
        x = _x(number * step_s, last_s)
        yield f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{number * step_s:g}</text>'


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten: the first one that is no less."""
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least)


def _x(at_s: float, last_s: float) -> float:
    return _LABEL + (_WIDTH - _LABEL - _RIGHT) * at_s / last_s
