"""A service of the user's own systemd, without root: the peer of the last run starts with the session, and again after a failure."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from averaging.host.hints import with_folder
from protocol.errors import ConfigError, MachineError, StorageError
from protocol.tables import printable

UNIT: Final = "potluck.service"
SYSTEMCTL_WITHIN_S: Final = 60.0

Runner = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]

_LINGER: Final = "to run it without a login, too: loginctl enable-linger"
_NO_RESTART: Final = "2 3 6 7 8"
"""Exit codes that no restart mends: usage, settings, refusal, another version, the end of the run."""


def run_systemctl(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `systemctl --user` with these arguments. Blocks.

    Raises:
        MachineError: there is no systemctl, or it does not answer.
    """
    try:
        return subprocess.run(
            ["systemctl", "--user", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SYSTEMCTL_WITHIN_S,
        )
    except FileNotFoundError as error:
        raise MachineError("no systemctl on this machine", "a system with systemd", "potluck join --detach") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(
            f"systemctl did not work ({error})", "a user session of systemd", "potluck join --detach"
        ) from error


def unit_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The unit's file in the user's configuration."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    return base / "systemd" / "user" / UNIT


def unit_text(command: Sequence[str], state_dir: Path, run: str = "") -> str:
    """The unit that goes on with the run called `run`, or with the last one.

    Raises:
        ConfigError: a path that a unit cannot hold.
    """
    arguments = [*command, "join", "--state-dir", str(state_dir.absolute()), "--screen", "plain"]
    arguments += ["--run", run] if run else []
    return f"""# Written by `potluck service install`; `potluck service remove` deletes it.
[Unit]
Description=Potluck peer
StartLimitIntervalSec=1h
StartLimitBurst=20

[Service]
# Started once the program runs: waiting for others, for as long as it takes, is no failed start.
Type=exec
Environment=PYTHONUNBUFFERED=1
ExecStart={" ".join(map(_quoted, arguments))}
# The daemon alone is told; it says goodbye and ends its own children.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=120
Restart=on-failure
RestartSec=30
RestartPreventExitStatus={_NO_RESTART}
Nice=10

[Install]
WantedBy=default.target
"""


def _quoted(argument: str) -> str:
    """An argument of ExecStart. systemd reads percent signs and dollar signs of its own (systemd.service(5), systemd.unit(5))."""
    if any(ord(letter) < 32 for letter in argument):
        raise ConfigError(f"{printable(argument)} cannot stand in a unit", "a path without control characters")
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def install_service(text: str, path: Path, systemctl: Runner = run_systemctl) -> list[str]:
    """Write the unit, enable it and start it. Returns lines for the owner. Blocks.

    Raises:
        StorageError: the unit cannot be written.
        MachineError: systemd refuses it; the unit's file is gone again.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror})", "a writable folder") from error
    try:
        _done(systemctl(["daemon-reload"]))
        _done(systemctl(["enable", "--now", UNIT]))
    except MachineError:
        path.unlink(missing_ok=True)
        raise
    return [
        f"installed and started: {path}",
        with_folder(f"see it:  potluck status, or systemctl --user status {UNIT}"),
        f"stop it: systemctl --user stop {UNIT}; for good: potluck service remove",
        _LINGER,
    ]


def remove_service(path: Path, systemctl: Runner = run_systemctl) -> str:
    """Stop the service and delete its unit. Returns one line for the owner. Blocks.

    Raises:
        ConfigError: it is not installed.
        MachineError: systemd refuses.
        StorageError: the unit cannot be deleted.
    """
    if not path.exists():
        raise ConfigError(f"no service is installed: {path} is not there", "an installed one", "nothing is to be done")
    _done(systemctl(["disable", "--now", UNIT]))
    try:
        path.unlink()
    except OSError as error:
        raise StorageError(f"{path} cannot be deleted ({error.strerror})", "a writable folder") from error
    _done(systemctl(["daemon-reload"]))
    return f"stopped and removed: {path}; the peer's state stays"


def _done(finished: subprocess.CompletedProcess[str]) -> None:
    if finished.returncode != 0:
        said = printable(finished.stderr.strip() or finished.stdout.strip() or f"exit code {finished.returncode}")
        raise MachineError(
            f"systemctl says: {said[:300]}", "a user session of systemd", "without one: potluck join --detach"
        )
