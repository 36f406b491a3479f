from __future__ import annotations

import math
import subprocess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from peer.owner import idle
from peer.owner.idle import IdleMeter, desktops_idle_s, key_interrupts

NOW_S = 1_800_000_000.0
IN_USE = "Type=wayland\nState=active\nIdleHint=no\nIdleSinceHint=0\n"
AWAY = f"Type=x11\nState=active\nIdleHint=yes\nIdleSinceHint={int((NOW_S - 90) * 1e6)}\n"
SHELL = "Type=tty\nState=active\nIdleHint=no\nIdleSinceHint=0\n"


class _Machine:
    """The signs that the meter finds: users, logins, what logind says, interrupts."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.now_s = tmp_path, monkeypatch, NOW_S
        self.meter = IdleMeter()
        self.has(users=())
        monkeypatch.setattr(idle, "SESSIONS", tmp_path / "sessions")
        monkeypatch.setattr(idle, "INTERRUPTS", tmp_path / "interrupts")

    def has(self, users: tuple[tuple[str, float | None], ...]) -> None:
        """Users as (terminal, seconds since a key)."""
        self.patch.setattr(psutil, "users", lambda: [SimpleNamespace(terminal=name) for name, _ in users])
        idle_s = dict(users)
        self.patch.setattr(idle, "_terminal_idle_s", lambda name, _now: idle_s[name])

    def logind_says(self, *blocks: str) -> None:
        (self.folder / "sessions").mkdir(exist_ok=True)
        for number in range(len(blocks)):
            (self.folder / "sessions" / str(number)).touch()
            (self.folder / "sessions" / f"{number}.ref").touch()

        def run(command: list[str], **_options: object) -> object:
            assert command[-len(blocks) :] == [str(number) for number in range(len(blocks))]
            return SimpleNamespace(stdout="\n".join(blocks))

        self.patch.setattr(subprocess, "run", run)

    def keys(self, count: int) -> None:
        line = f"   1:  {count}   0   IO-APIC   1-edge      i8042\n"
        (self.folder / "interrupts").write_text("      CPU0   CPU1\n" + line, encoding="ascii")

    def idle_s(self) -> float | None:
        return self.meter.read(self.now_s)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Machine:
    return _Machine(tmp_path, monkeypatch)


def test_where_nothing_can_be_seen_it_is_not_known(machine: _Machine) -> None:
    assert machine.idle_s() is None
    machine.keys(5)
    assert machine.idle_s() is None


def test_where_nobody_is_logged_in_nobody_uses_it(machine: _Machine) -> None:
    machine.logind_says()
    assert machine.idle_s() == math.inf


def test_the_last_key_in_any_terminal_counts(machine: _Machine) -> None:
    machine.has(users=(("pts/0", 400.0), ("pts/1", 12.0)))
    assert machine.idle_s() == 12.0


def test_a_desktop_that_cannot_be_asked_makes_it_unknown_whatever_terminals_say(machine: _Machine) -> None:
    machine.has(users=((":0", None), ("pts/1", 900.0)))
    assert machine.idle_s() is None


def test_a_desktop_in_use_is_in_use_and_one_that_is_away_says_since_when(machine: _Machine) -> None:
    machine.has(users=((":0", None), ("pts/1", 900.0)))
    machine.logind_says(SHELL, AWAY)
    assert machine.idle_s() == pytest.approx(90.0)
    machine.logind_says(SHELL, AWAY, IN_USE)
    assert machine.idle_s() == 0.0


@pytest.mark.parametrize("error", [OSError("no loginctl"), subprocess.TimeoutExpired("loginctl", 1.0)])
def test_logind_that_does_not_answer_makes_it_unknown(machine: _Machine, error: Exception) -> None:
    machine.logind_says(IN_USE)

    def fails(*_command: object, **_options: object) -> None:
        raise error

    machine.patch.setattr(subprocess, "run", fails)
    assert machine.idle_s() is None


def test_a_key_on_a_laptop_counts_from_the_reading_that_saw_it(machine: _Machine) -> None:
    machine.logind_says()
    machine.keys(5)
    assert machine.idle_s() == 0.0
    machine.now_s += 600
    assert machine.idle_s() == 600.0
    machine.keys(6)
    assert machine.idle_s() == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (SHELL, []),
        (IN_USE + "\n" + AWAY, [0.0, 90.0]),
        (AWAY.replace("active", "closing"), []),
        ("Type=x11\nState=active\nIdleHint=yes\nIdleSinceHint=soon\n", [0.0]),
        ("Type=x11\n", [0.0]),
        ("no fields at all", []),
    ],
)
def test_what_logind_says_is_read_and_what_is_not_understood_counts_as_in_use(text: str, found: list[float]) -> None:
    assert desktops_idle_s(text, NOW_S) == pytest.approx(found)


def test_interrupts_of_other_devices_do_not_count() -> None:
    text = "  1: 3 4 IO-APIC 1-edge i8042\n 12: 5 0 IO-APIC 12-edge i8042\n 16: 99 99 PCI-MSI xhci_hcd\n"
    assert key_interrupts(text) == 12
    assert key_interrupts("16: 99 99 PCI-MSI xhci_hcd") is None


@pytest.mark.parametrize("terminal", [None, "", ":0", "../etc/passwd", "no-such-terminal"])
def test_what_is_no_terminal_tells_nothing(terminal: str | None) -> None:
    assert idle._terminal_idle_s(terminal, NOW_S) is None


def test_a_terminal_tells_by_the_time_of_its_last_key() -> None:
    assert idle._terminal_idle_s("null", Path("/dev/null").stat().st_atime + 7.0) == pytest.approx(7.0, abs=0.01)
