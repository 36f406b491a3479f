"""An invite as a picture in the terminal."""

from __future__ import annotations

import re

import pytest
import segno

from averaging.host.daemon_views import WIDTH
from coordinator.admission.qr_code import BORDER_MODULES, ROWS_BESIDE, qr_at_start, qr_lines
from protocol.identity.credential import make_ca
from protocol.identity.invite import Invite
from protocol.ids import RunId

TEXT = "potluck1:" + "Ab3" * 100
_HALVES = {"\u2588": (0, 0), "\u2580": (0, 1), "\u2584": (1, 0), " ": (1, 1), "\xa0": (1, 1)}
"""Upper and lower module of a character; the light ones are drawn."""


def modules(lines: list[str]) -> list[list[int]]:
    rows: list[list[int]] = []
    for line in lines:
        shown = [_HALVES[c] for c in re.sub(r"\x1b\[[0-9;]*m", "", line)]
        rows += [[upper for upper, _ in shown], [lower for _, lower in shown]]
    return rows


def test_the_terminal_shows_every_module_of_the_code() -> None:
    lines = qr_lines(TEXT, 200)
    assert lines is not None
    code = segno.make(TEXT, error="l", micro=False)
    expected = [list(row) for row in code.matrix_iter(border=BORDER_MODULES)]
    found = modules(lines)
    assert [row[: len(expected)] for row in found[: len(expected)]] == expected


def test_each_line_brings_its_own_colours_and_puts_them_back() -> None:
    for line in qr_lines(TEXT, 200) or ["none"]:
        assert line.startswith("\x1b[40;97m")
        assert line.endswith("\x1b[0m")


@pytest.mark.parametrize(("text", "columns"), [(TEXT, 40), ("x" * 4000, 4000)])
def test_what_does_not_fit_is_not_drawn(text: str, columns: int) -> None:
    assert qr_lines(text, columns) is None


@pytest.mark.parametrize("host", ["198.51.100.234", "a-host-at-home.example.org"])
def test_the_invite_of_a_run_fits_the_narrowest_usual_terminal(host: str) -> None:
    authority = make_ca(b"a" * 32, now_unix_s=1_700_000_000.0)
    bootstrap = f"/ip4/{host}/tcp/58001/p2p/12D3KooWBusdnuoWmPRGJqG6Gok78MF91e5Y4PxhXRANgB6PaQwD"
    places = ((f"{host}:54689",), authority.certificate_der, RunId(b"r" * 32), b"s" * 16, 1_800_000_000)
    assert qr_lines(Invite(*places, (bootstrap,), 100).encode(), WIDTH) is not None


def test_the_code_is_left_out_at_the_start_where_it_would_push_the_invite_off_the_terminal() -> None:
    drawn = qr_lines(TEXT, 200)
    assert drawn is not None
    for columns, rows in ((200, 24), (200, len(drawn) + ROWS_BESIDE - 1), (40, 200)):
        assert qr_at_start(TEXT, columns, rows) == "an invite as a QR code: potluck invite --qr"
    assert qr_at_start(TEXT, 200, len(drawn) + ROWS_BESIDE) == "\n".join(drawn)
