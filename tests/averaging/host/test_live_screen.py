from __future__ import annotations

import io

import trio
import trio.testing
from rich.console import Console

from averaging.host.live_screen import bars_of, rows_of_text, run_daemon_screen


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_plain_lines_are_printed_as_they_come_and_the_last_ones_at_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    console, calls = Console(file=io.StringIO(), width=200), list[float]()

    def new_lines(now_s: float) -> list[str]:
        calls.append(now_s)
        return [f"line {len(calls)} [red]\x1b"] if len(calls) != 2 else []

    with trio.move_on_after(1.5):
        await run_daemon_screen(lambda: "the panel", new_lines, mode="auto", console=console)
    assert _text(console).splitlines() == ["line 1 [red]\\x1b", "line 3 [red]\\x1b"]


async def test_terminal_gets_the_panel(autojump_clock: trio.testing.MockClock) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with trio.move_on_after(1.0):
        await run_daemon_screen(lambda: "the panel", lambda _: ["a line"], mode="auto", console=console)
    assert "the panel" in _text(console)
    assert "a line" not in _text(console)


def test_bars_and_rows_show_text_of_strangers_as_text() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(bars_of([(2.0, "[b]whole\x1b")]), rows_of_text([("name", "[i]value\x1b")]))
    assert "[b]whole\\x1b" in _text(console)
    assert "[i]value\\x1b" in _text(console)
