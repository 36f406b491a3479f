"""How long nobody has used this machine, from terminals, desktop sessions and a laptop's keys; None if unknown."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

from averaging.system.child_python import CHILD_FOLDER

SESSIONS: Final = Path("/run/systemd/sessions")
"""One file for each login, where systemd-logind runs."""

INTERRUPTS: Final = Path("/proc/interrupts")
ASK_WITHIN_S: Final = 1.0
_DESKTOPS: Final = ("x11", "wayland", "mir")


class IdleMeter:
    """Read every second. A key press on a laptop's own keyboard shows as a higher interrupt count than at the previous reading."""

    def __init__(self) -> None:
        self._keys: int | None = None
        self._pressed_unix_s = 0.0

    def read(self, now_s: float) -> float | None:
        """Seconds without input, infinity if nobody is logged in, None if it is unknown. Blocks for milliseconds.

        Args:
            now_s: unix time, which the timestamps of files and desktops use.
        """
        desktops = self._desktops(now_s)
        terminals = [_terminal_idle_s(user.terminal, now_s) for user in psutil.users()]
        found = [idle_s for idle_s in terminals if idle_s is not None]
        found += desktops or ()
        keys_s = self._keys_idle_s(now_s)
        if desktops is None and (not found or None in terminals):
            # No visible user, or a user on a screen that we cannot see. In a container every machine looks unused.
            return None
        found += () if keys_s is None else (keys_s,)
        return max(0.0, min(found, default=math.inf))

    def _keys_idle_s(self, now_s: float) -> float | None:
        try:
            keys = key_interrupts(INTERRUPTS.read_text(encoding="ascii", errors="replace"))
        except OSError:
            return None
        if keys is None:
            return None
        if keys != self._keys:
            self._pressed_unix_s = now_s
        self._keys = keys
        # Nothing is known of the time before our start, so the machine counts as used then.
        return now_s - self._pressed_unix_s

    def _desktops(self, now_s: float) -> list[float] | None:
        """Idle seconds of each desktop session; None if logind does not run or does not answer."""
        try:
            names = sorted(path.name for path in SESSIONS.iterdir() if path.suffix != ".ref")
        except OSError:
            return None
        if not names:
            return []
        fields = [f"--property={name}" for name in ("Type", "State", "IdleHint", "IdleSinceHint")]
        try:
            said = subprocess.run(
                ["loginctl", "show-session", *fields, "--", *names],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ASK_WITHIN_S,
                cwd=CHILD_FOLDER,  # an entry of PATH may name the current folder
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return desktops_idle_s(said.stdout, now_s)


def desktops_idle_s(text: str, now_unix_s: float) -> list[float]:
    """Idle seconds of each desktop in the output of `loginctl show-session`: 0 for one in use, else the time since its user
    left.
    """
    idle_s: list[float] = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        if fields.get("Type") not in _DESKTOPS or fields.get("State") == "closing":
            continue
        since = fields.get("IdleSinceHint", "")
        is_away = fields.get("IdleHint") == "yes" and since.isascii() and since.isdigit()
        idle_s.append(now_unix_s - int(since) / 1e6 if is_away else 0.0)
    return idle_s


def key_interrupts(text: str) -> int | None:
    """The interrupt count of a laptop's own keyboard and touchpad (the i8042 chip); None without one. Other keyboards share an
    interrupt with other devices, so their count says nothing.
    """
    lines = [line.split() for line in text.splitlines() if "i8042" in line]
    return sum(_leading_sum(words[1:]) for words in lines) if lines else None


def _leading_sum(words: Iterable[str]) -> int:
    total = 0
    for word in words:
        if not word.isdigit():
            break
        total += int(word)
    return total


def _terminal_idle_s(terminal: str | None, now_unix_s: float) -> float | None:
    """Seconds since the terminal's last key; None for a session without a terminal, such as a desktop."""
    if not terminal or terminal.startswith(":") or ".." in terminal:
        return None
    try:
        return now_unix_s - os.stat(f"/dev/{terminal}").st_atime
    except OSError:
        return None
