"""The command line as a user meets it: fast help, one-line errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HELP_LIMIT_S = 0.5


def _potluck(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "potluck", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _cpu_s(*arguments: str) -> float:
    """CPU seconds of one command: unlike wall time, not at the mercy of other processes."""
    before = os.times()
    assert _potluck(*arguments).returncode == 0
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    assert min(_cpu_s("--help") for _ in range(3)) < HELP_LIMIT_S


def test_help_names_every_command_and_every_exit_code() -> None:
    text = _potluck("--help").stdout
    for word in ("init", "host", "join", "invite", "status", "checkpoint", "demo", "130", "75"):
        assert word in text


def test_version_names_the_protocol_too() -> None:
    done = _potluck("--version")
    assert done.returncode == 0
    assert "protocol 1" in done.stdout


@pytest.mark.parametrize("arguments", [["no-such-command"], ["join", "--no-such-flag"], ["demo", "--tokens", "many"]])
def test_command_line_that_cannot_be_meant_exits_2(arguments: list[str]) -> None:
    assert _potluck(*arguments).returncode == 2


@pytest.mark.parametrize("value", ["0", "-1", "0.5"])
def test_setting_that_cannot_work_is_one_line_and_exit_3(value: str) -> None:
    done = _potluck("join", "--slowdown", value)
    assert done.returncode == 3
    assert done.stderr.startswith("potluck: peer setting slowdown is ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_init_writes_a_run_file_and_keeps_one_that_is_there(tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    assert _potluck("init", str(run_file)).returncode == 0
    run_file.write_text("mine", encoding="utf8")
    done = _potluck("init", str(run_file))
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert run_file.read_text(encoding="utf8") == "mine"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[run]\nnmae = 'x'\n", "nmae"),
        ("[round]\ntarget_tokens = 0\n", "target_tokens"),
        ("[inner]\nlearning_rate = -1.0\n", "learning_rate"),
        ("[round]\ntarget_tokens = 'many'\n", "target_tokens"),
        ("[run\n", "run.toml"),
    ],
    ids=["unknown key", "zero", "negative", "wrong type", "not TOML"],
)
def test_host_with_a_manifest_that_cannot_work_is_one_line_and_exit_3(tmp_path: Path, text: str, found: str) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(text, encoding="utf8")
    done = _potluck("host", str(run_file), "--state-dir", str(tmp_path / "host"))
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert found in done.stderr


@pytest.mark.parametrize("invite", ["hello", "potluck1:", "potluck1:AAAA", "potluck9:AAAA"])
def test_join_with_a_malformed_invite_is_one_line_and_not_zero(tmp_path: Path, invite: str) -> None:
    done = _potluck("join", invite, "--state-dir", str(tmp_path / "peer"))
    assert done.returncode in (3, 6, 7), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
