from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from averaging.host.command_errors import refused_by_the_machine, report, report_missing, report_usage
from protocol.errors import MachineError, StorageError, UsageError


class _Mistyped(Exception):
    """An error of a click that asks what was meant, beside a typer that has asked it already."""

    message = "No such command 'statu'. Did you mean 'status'?"

    def format_message(self) -> str:
        return f"{self.message} Did you mean 'status'?"


class _BadValue(Exception):
    message = "is it a number?"

    def format_message(self) -> str:
        return f"Invalid value for '--tokens': {self.message}"


class _MistypedFlag(Exception):
    message, possibilities = "No such option: --satte-dir", ("--state-dir",)

    def format_message(self) -> str:
        return f"{self.message} (Possible options: --state-dir)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_Mistyped(), "potluck: No such command 'statu'. Did you mean 'status'?\n"),
        (_MistypedFlag(), "potluck: No such option: --satte-dir. Did you mean --state-dir?\n"),
        (_BadValue(), "potluck: Invalid value for '--tokens': is it a number?\n"),
    ],
)
def test_question_is_asked_once_whoever_asks_it(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_usage(error) == UsageError.exit_code
    assert capsys.readouterr().err == said


def test_command_that_a_full_disk_ends_says_to_free_space_whatever_it_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    reason = os.strerror(errno.ENOSPC)
    refused = refused_by_the_machine(OSError(errno.ENOSPC, reason, "/state/x"))
    assert refused is not None
    written = StorageError(f"/state/x cannot be written: {reason}", "a writable folder", "choose another --state-dir")
    for error in (refused, written):
        assert report(error) == MachineError.exit_code
        said = capsys.readouterr().err
        assert said.startswith("potluck: /state/x")
        assert said.endswith("No space left on device; expected room on that disk; free space and run it again\n")


def test_package_that_is_missing_is_a_fault_of_the_machine_and_a_module_of_ours_a_bug(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("averaging.host.command_errors.temporary_folder", lambda: str(tmp_path))
    assert report_missing(ModuleNotFoundError("No module named 'torch'", name="torch")) == 4
    assert "the Python package torch is missing" in capsys.readouterr().err
    assert report_missing(ImportError("cannot import", name="peer.daemon")) == 1
    assert "this is a bug" in capsys.readouterr().err
