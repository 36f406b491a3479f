"""The doctor as a user meets it, on this machine and on broken ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peer.checks.doctor import check_before_join, run_doctor
from peer.checks.machine_core import Readings
from peer.settings.config import PeerConfig
from protocol.errors import MachineError
from tests.peer.checks.test_machine_core import FINE


def on_machine(monkeypatch: pytest.MonkeyPatch, readings: Readings) -> PeerConfig:
    monkeypatch.setattr("peer.checks.doctor.read_machine", lambda *_arguments, **_options: readings)
    return PeerConfig(state_dir=Path("/no such folder"))


def test_fine_machine_ends_with_0_and_one_line_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_doctor(on_machine(monkeypatch, FINE), "", as_json=False) == 0
    *lines, rest = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["ok  "] * 9
    assert rest == "to check clock, ports and bandwidth, add the line of a host: potluck doctor potluck1:..."


@pytest.mark.parametrize(("limit", "exit_code", "level"), [(1000, 0, "warn"), (10, 4, "fail")])
def test_json_says_the_same_as_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: int, exit_code: int, level: str
) -> None:
    assert run_doctor(on_machine(monkeypatch, replace(FINE, open_files=limit)), "", as_json=True) == exit_code
    reported = json.loads(capsys.readouterr().out)
    assert reported["worst"] == level
    (row,) = [row for row in reported["findings"] if row["level"] == level]
    assert set(row) == {"name", "level", "found", "fix"}
    assert reported["readings"]["machine"]["open_files"] == limit


def test_join_is_stopped_by_a_fail_alone_and_hears_of_warns_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_before_join(on_machine(monkeypatch, FINE), "")
    assert capsys.readouterr().err == ""
    check_before_join(on_machine(monkeypatch, replace(FINE, open_files=1000)), "")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("potluck: warn: open files: up to 1000")
    with pytest.raises(MachineError, match=r"open files: up to 10,.*ulimit -n 1024") as stopped:
        check_before_join(on_machine(monkeypatch, replace(FINE, open_files=10, num_parameters=1 << 40)), "")
    assert stopped.value.exit_code == 4
    assert capsys.readouterr().err == ""
