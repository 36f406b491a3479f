"""Python processes that Potluck starts run what is installed, wherever its user stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from averaging.system.child_python import CHILD_FOLDER, child_environment, python_command

ROOT = Path(__file__).parents[3]


def _path(environment: dict[str, str]) -> list[str]:
    return environment["PYTHONPATH"].split(os.pathsep)


def test_a_child_imports_this_potluck_and_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("protocol", "json", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the folder was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", ".", "./")))
    done = subprocess.run(
        python_command("-c", "import json, protocol; print(protocol.__file__)"),
        env=child_environment(),
        cwd=CHILD_FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == (str(ROOT / "protocol" / "__init__.py"), "", 0)


def test_other_entries_of_pythonpath_stay_and_relative_ones_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"PYTHONPATH": os.pathsep.join(("/opt/mine", "lib", "")), "LANG": "C"}
    assert _path(child_environment(given)) == [str(ROOT), "/opt/mine", str(tmp_path / "lib")]
    assert child_environment(given)["LANG"] == "C"


def test_a_folder_of_installed_packages_is_not_put_before_pythons_own_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("averaging.system.child_python._ROOT", tmp_path)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    assert "PYTHONPATH" not in child_environment({"PYTHONPATH": ""})
    assert _path(child_environment({"PYTHONPATH": "/opt/mine"})) == ["/opt/mine"]


def test_the_command_is_of_the_same_python() -> None:
    assert python_command("-m", "potluck") == [sys.executable, "-P", "-m", "potluck"]
