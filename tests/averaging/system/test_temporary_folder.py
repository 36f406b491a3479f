from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest

from averaging.host.command_errors import report_bug
from averaging.system.temporary_folder import temporary_folder
from protocol.errors import MachineError


def _none() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


def test_the_folder_is_the_one_that_the_environment_names() -> None:
    assert Path(temporary_folder()).is_dir()


def test_no_folder_for_temporary_files_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", _none)
    with pytest.raises(MachineError, match=r"'/tmp'.*set TMPDIR to one"):
        temporary_folder()


def test_a_bug_is_reported_also_where_no_file_can_hold_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", _none)
    report_bug(ValueError("odd"))
    said = capsys.readouterr().err
    assert "ValueError: odd; this is a bug; please report it with the lines above" in said
