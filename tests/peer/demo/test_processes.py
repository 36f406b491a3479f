from __future__ import annotations

import signal
from pathlib import Path

import pytest

from peer.demo.processes import Running, last_line, open_processes, wait_for_invite
from protocol.errors import MachineError


def test_started_command_writes_to_its_log_and_gives_its_exit_code(tmp_path: Path) -> None:
    with open_processes(tmp_path / "logs") as processes:
        running = processes.start("version", ["--version"])
        assert running.process.wait(timeout=300) == 0
    assert running.output().startswith("potluck ")
    assert last_line(running).startswith("potluck ")


def test_cwd_shadow_a_command_runs_nothing_from_the_folder_in_which_demo_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("potluck", "typer", "protocol"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was run')")
    monkeypatch.chdir(tmp_path)
    with open_processes(tmp_path / "logs") as processes:
        running = processes.start("version", ["--version"])
        assert running.process.wait(timeout=300) == 0, running.output()


def test_killed_command_is_gone_with_a_signal_code(tmp_path: Path) -> None:
    with open_processes(tmp_path) as processes:
        running = processes.start("version", ["--version"])
        running.kill_group()
        assert running.exit_code() in (-9, 0)
        running.kill_group()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminal_that_is_closed_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    started: list[Running] = []

    def closed_meanwhile() -> None:
        with open_processes(tmp_path) as processes:
            started.append(processes.start("version", ["--version"]))
            assert signal.getsignal(number) is not signal.SIG_DFL, "pytest would end here"
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        closed_meanwhile()
    assert started[0].exit_code() is not None
    assert signal.getsignal(number) is signal.SIG_DFL


def test_waiting_for_an_invite_names_what_the_host_said_when_it_ended(tmp_path: Path) -> None:
    with open_processes(tmp_path) as processes:
        running = processes.start("host", ["no-such-command"])
        with pytest.raises(MachineError, match="exit code 2"):
            wait_for_invite(running, 30.0)


def test_words_of_an_earlier_process_of_the_same_name_are_not_its_own(tmp_path: Path) -> None:
    with open_processes(tmp_path) as processes:
        first = processes.start("host", ["no-such-command"])
        first.process.wait(timeout=300)
        second = processes.start("host", ["--version"])
        second.process.wait(timeout=300)
    assert "no-such-command" in first.output()
    assert second.output().startswith("potluck ")
