"""A service of the user's own systemd: the unit's text, and what systemctl is asked for, without one."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peer.owner.user_service import UNIT, install_service, remove_service, run_systemctl, unit_path, unit_text
from protocol.errors import ConfigError, MachineError


@dataclass
class Systemctl:
    """Notes what it is asked for; fails at one word."""

    fails_at: str = ""
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(arguments))
        code = 1 if self.fails_at in arguments else 0
        return subprocess.CompletedProcess(["systemctl"], code, "", "Failed to connect to bus\n" if code else "")


def test_the_unit_goes_on_with_a_run_restarts_after_failures_and_leaves_time_for_a_goodbye(tmp_path: Path) -> None:
    lines = unit_text(["/venv/bin/python", "/venv/bin/potluck"], tmp_path, "our run").splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    expected = (
        f'"/venv/bin/python" "/venv/bin/potluck" "join" "--state-dir" "{tmp_path}" "--screen" "plain" "--run" "our run"'
    )
    assert start == f"ExecStart={expected}"
    for line in (
        "Restart=on-failure",
        "RestartPreventExitStatus=2 3 6 7 8",
        "KillSignal=SIGTERM",
        "TimeoutStopSec=120",
        "WantedBy=default.target",
    ):
        assert line in lines
    assert "--run" not in unit_text(["potluck"], tmp_path)


def test_letters_that_systemd_reads_itself_are_escaped(tmp_path: Path) -> None:
    text = unit_text(['/a "b"/50%/$HOME\\x'], tmp_path)
    assert 'ExecStart="/a \\"b\\"/50%%/$$HOME\\\\x" "join"' in text
    with pytest.raises(ConfigError, match="cannot stand in a unit"):
        unit_text(["/a\nExecStart=/bin/true"], tmp_path)


def test_installing_writes_the_unit_reloads_and_starts_it_and_removing_undoes_that(tmp_path: Path) -> None:
    path, systemctl = tmp_path / "config" / UNIT, Systemctl()
    said = install_service("[Unit]\n", path, systemctl)
    assert path.read_text() == "[Unit]\n"
    assert systemctl.asked == [["daemon-reload"], ["enable", "--now", UNIT]]
    assert "potluck status" in said[1]
    assert "loginctl enable-linger" in said[-1]
    systemctl.asked.clear()
    assert "the peer's state stays" in remove_service(path, systemctl)
    assert not path.exists()
    assert systemctl.asked == [["disable", "--now", UNIT], ["daemon-reload"]]
    with pytest.raises(ConfigError, match="no service is installed"):
        remove_service(path, systemctl)


@pytest.mark.parametrize("fails_at", ["daemon-reload", "enable"])
def test_where_systemd_refuses_nothing_is_left_and_the_other_way_is_said(tmp_path: Path, fails_at: str) -> None:
    with pytest.raises(MachineError, match=r"Failed to connect to bus.*potluck join --detach"):
        install_service("[Unit]\n", tmp_path / UNIT, Systemctl(fails_at))
    assert not (tmp_path / UNIT).exists()


def test_a_machine_without_systemd_is_told_the_other_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match=r"no systemctl on this machine.*potluck join --detach"):
        run_systemctl(["daemon-reload"])


def test_the_unit_lies_in_the_users_configuration(tmp_path: Path) -> None:
    assert unit_path({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "systemd" / "user" / UNIT
    assert unit_path({"XDG_CONFIG_HOME": "relative"}) == Path.home() / ".config" / "systemd" / "user" / UNIT
