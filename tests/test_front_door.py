"""The command line as a user meets it: fast help, one-line errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer

from peer.commands import join
from tests.protocol.test_invite import INVITE

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
    for word in ("init", "host", "join", "invite", "ban", "status", "checkpoint", "demo", "generate", "130", "75"):
        assert word in text


def test_version_names_the_protocol_too() -> None:
    done = _potluck("--version")
    assert done.returncode == 0
    assert "protocol 1" in done.stdout


def _one_line(done: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """The one line that a command said when it failed, and nothing else anywhere."""
    assert done.returncode == exit_code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("potluck: ")
    assert done.stdout == ""
    return line


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["no-such-command"], "No such command 'no-such-command'"),
        (["checkpoint", "no-such-command"], "potluck checkpoint --help"),
        (["--no-such-flag"], "No such option: --no-such-flag"),
        (["join", "--no-such-flag"], "potluck join --help"),
        (["host"], "Missing argument"),
        (["host", "run.toml", "another.toml"], "another.toml"),
        (["join", "--state-dir"], "--state-dir"),
        (["demo", "--tokens", "many"], "--tokens"),
        (["checkpoint", "export", "only-one"], "OUT_DIR"),
        (["generate"], "CHECKPOINT_DIR"),
        (["generate", "folder", "--tokens", "many"], "--tokens"),
    ],
)
def test_command_line_that_cannot_be_meant_is_one_line_and_exit_2(arguments: list[str], found: str) -> None:
    assert found in _one_line(_potluck(*arguments), 2)


@pytest.mark.parametrize("arguments", [[], ["checkpoint"]])
def test_no_command_at_all_shows_what_there_is(arguments: list[str]) -> None:
    done = _potluck(*arguments)
    assert done.returncode == 2
    assert "checkpoint" in done.stdout + done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "0.5"])
def test_setting_that_cannot_work_is_one_line_and_exit_3(value: str) -> None:
    assert _one_line(_potluck("join", "--slowdown", value), 3).startswith("potluck: peer setting slowdown is ")


@pytest.mark.parametrize("module", ["typer", "coordinator.command_line", "protocol.errors"])
def test_interrupt_while_modules_are_read_is_one_line_and_exit_130(module: str) -> None:
    program = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
import potluck
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert _one_line(done, 130) == "potluck: interrupted; left at once"


def test_interrupt_of_a_command_is_one_line_and_exit_130() -> None:
    program = """
import coordinator.commands, potluck
def interrupted(*_arguments, **_options):
    raise KeyboardInterrupt
coordinator.commands.status = interrupted
potluck.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "status"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert _one_line(done, 130) == "potluck: interrupted; left at once"


def test_init_writes_a_run_file_and_keeps_one_that_is_there(tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    assert _potluck("init", str(run_file)).returncode == 0
    run_file.write_text("mine", encoding="utf8")
    assert "exists already" in _one_line(_potluck("init", str(run_file)), 3)
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
    assert found in _one_line(done, 3)
    assert not (tmp_path / "host").exists()


def test_host_without_its_run_file_is_one_line_and_exit_3(tmp_path: Path) -> None:
    done = _potluck("host", str(tmp_path / "none.toml"), "--state-dir", str(tmp_path / "host"))
    assert "potluck init" in _one_line(done, 3)


GOOD = INVITE.encode()


@pytest.mark.parametrize(
    ("pasted", "exit_code", "found"),
    [
        (["hello"], 3, "begins with 'hello'"),
        (["potluk1:" + GOOD[9:]], 3, "expected potluck1:..."),
        ([GOOD[9:]], 3, "expected potluck1:..."),
        (["potluck1:"], 3, "cut off or mistyped"),
        (["potluck1:!!!!"], 3, "cut off or mistyped"),
        ([GOOD[:-20]], 3, "cut off or mistyped"),
        ([GOOD[:40] + ("A" if GOOD[40] != "A" else "B") + GOOD[41:]], 3, "cut off or mistyped"),
        (["potluck9:AAAA"], 7, "install a newer potluck"),
        ([], 3, "no invite"),
    ],
    ids=["word", "prefix", "no prefix", "nothing", "no base64", "cut off", "one letter", "newer", "none"],
)
def test_join_with_what_is_no_invite_is_one_line_and_writes_nothing(
    tmp_path: Path, pasted: list[str], exit_code: int, found: str
) -> None:
    done = _potluck("join", *pasted, "--state-dir", str(tmp_path / "peer"))
    assert found in _one_line(done, exit_code)
    assert not (tmp_path / "peer").exists()


@pytest.mark.parametrize(
    ("pieces", "understood"),
    [
        ([GOOD], GOOD),
        ([f" {GOOD[:50]}\n  {GOOD[50:]}\n"], GOOD),
        ([GOOD[:50], GOOD[50:60], GOOD[60:]], GOOD),
        ([" "], ""),
    ],
    ids=["whole", "wrapped", "in pieces", "blank"],
)
def test_invite_pasted_with_line_breaks_or_spaces_is_understood(
    pieces: list[str], understood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def run_peer(_config: object, text: str, _worker: object) -> int:
        heard.append(text)
        return 0

    monkeypatch.setattr("peer.daemon.run_peer", run_peer)
    monkeypatch.setattr("peer.worker_process.early_worker", nullcontext)
    with pytest.raises(typer.Exit):
        join(pieces)
    assert heard == [understood]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "found"),
    [
        (["status"], 3, "no run is hosted from"),
        (["invite"], 3, "no run is hosted from"),
        (["ban", "somebody"], 3, "no run is hosted from"),
        (["checkpoint", "list"], 3, "no run is hosted from"),
    ],
    ids=["status", "invite", "ban", "list"],
)
@pytest.mark.parametrize("folder", ["absent", "of something else"])
def test_command_about_a_run_without_a_run_is_one_line(
    tmp_path: Path, arguments: list[str], exit_code: int, found: str, folder: str
) -> None:
    (tmp_path / "of something else").mkdir()
    line = _one_line(_potluck(*arguments, "--state-dir", str(tmp_path / folder)), exit_code)
    assert found in line
    assert "--state-dir" in line
