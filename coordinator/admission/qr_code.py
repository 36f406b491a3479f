"""An invite as a QR code in the terminal, for a phone that carries it to another machine."""

from __future__ import annotations

import io
from typing import Final

BORDER_MODULES: Final = 2
"""Width of the white border in modules. The standard asks for 4, but cameras accept 2, and a terminal has few columns."""


ROWS_BESIDE: Final = 16
"""Rows of the lines that the host prints around the code: the invite must stay in sight."""


def qr_lines(text: str, columns: int) -> list[str] | None:
    """The code in half blocks, two modules per character. None if a line needs more than `columns`, or the text is too long for a
    code. Lines set their own colours, so the code is dark on light in every terminal.
    """
    import segno

    try:
        code = segno.make(text, error="l", micro=False)
    except segno.DataOverflowError:
        return None
    if code.symbol_size(border=BORDER_MODULES)[0] > columns:
        return None
    drawn = io.StringIO()
    code.terminal(drawn, border=BORDER_MODULES, compact=True)
    return [f"\x1b[40;97m{line}\x1b[0m" for line in drawn.getvalue().splitlines()]


def qr_at_start(text: str, columns: int, rows: int) -> str:
    """The code for the host's start. A terminal that cannot show it below the invite gets the command that draws one instead."""
    lines = qr_lines(text, columns)
    if lines is None or len(lines) + ROWS_BESIDE > rows:
        return "an invite as a QR code: potluck invite --qr"
    return "\n".join(lines)
