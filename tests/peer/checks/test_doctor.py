"""The doctor as a user meets it, on this machine and on broken ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peer.checks.doctor import check_before_join, run_doctor
from peer.checks.machine_core import Readings
from peer.settings.config import PeerConfig
from peer.training.plan.layout import WishedSplit
from protocol.errors import MachineError
from protocol.run.manifest import default_run_toml, parse_run_config
from tests.peer.checks.test_machine_core import FINE

RUN = parse_run_config(default_run_toml())


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


@pytest.mark.parametrize(
    ("split", "gpus", "level", "words"),
    [
        ("shard", "0,1", "ok", "parameters over 2"),
        ("islands", "0,1", "ok", "2 islands"),
        ("tensor", "0,1,2", "fail", "4 heads are not a multiple of 3"),
    ],
)
def test_processes_on_the_cpu_are_told_as_the_cards_that_they_stand_for(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    split: WishedSplit,
    gpus: str,
    level: str,
    words: str,
) -> None:
    """They were told as one process with all of the machine's memory."""
    config = on_machine(monkeypatch, replace(FINE, device="cpu"))
    monkeypatch.setattr("peer.checks.doctor._run_kept", lambda *_: RUN)
    own = config.model_copy(update={"device": "cpu", "gpus": gpus, "split": split})
    run_doctor(own, "", as_json=True)
    findings = {row["name"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert "plan" not in findings
    assert findings["layout"]["level"] == level
    assert words in findings["layout"]["found"]
