"""Pictures as SVG documents that need no font and nothing from outside. Pure: numbers in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from protocol.tables import printable

_TITLE_PX: Final = 15


@dataclass(frozen=True, slots=True)
class Sheet:
    """The page below a picture: white, with a title at its top. Lengths in pixels.

    Attributes:
        font_px: the letters' size, but for the title's.
        title_x, title_y: the beginning of the title's base line.
    """

    width: int
    height: int
    font_px: int
    title_x: int
    title_y: int


def svg_document(sheet: Sheet, title: str, elements: Sequence[str]) -> str:
    """The document, with the elements above the page, the later ones above the earlier ones. The title may be any text."""
    size = f'width="{sheet.width}" height="{sheet.height}" viewBox="0 0 {sheet.width} {sheet.height}"'
    page = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{sheet.font_px}">',
        f'<rect width="{sheet.width}" height="{sheet.height}" fill="white"/>',
        f'<text x="{sheet.title_x}" y="{sheet.title_y}" font-size="{_TITLE_PX}">{svg_text(title)}</text>',
    ]
    return "\n".join((*page, *elements, "</svg>")) + "\n"


def svg_text(text: object) -> str:
    """Any text between two tags."""
    return escape(printable(text))
