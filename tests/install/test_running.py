from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.install.running import COMMAND_LIMIT_S, Failed, answer_of, bare, broken_imports, of_pyenv, result, run


def test_command_that_fails_is_told_with_the_end_of_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(Failed, match=r"exit code 3\n    the reason"):
        run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], log=log)
    assert log.read_text() == "the reason\n"
    assert COMMAND_LIMIT_S > 0


def test_program_that_is_not_there_and_one_that_hangs_are_told(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="No such file"):
        run([tmp_path / "nothing"])
    with pytest.raises(Failed, match="not done within 0 s"):
        run([sys.executable, "-c", "import signal; signal.pause()"], limit_s=0.01)


def test_bare_machine_has_only_the_environment_on_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_CERT", "/certificates")
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    found = bare(python, tmp_path / "home")
    assert (found["PATH"], found["HOME"], found["PIP_CERT"]) == (
        str(python.parent),
        str(tmp_path / "home"),
        "/certificates",
    )
    assert "PYTHONPATH" not in found
    assert (tmp_path / "home").is_dir()


def test_environment_that_brings_a_compiler_or_git_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gcc").touch()
    with pytest.raises(Failed, match="has gcc"):
        bare(tmp_path / "bin/python", tmp_path / "home")


def test_newest_release_of_a_version_is_found_among_those_of_pyenv(tmp_path: Path) -> None:
    for name in ("3.12.9", "3.12.10", "3.12.11rc1", "3.1.4", "3.13.0", "3.12.x"):
        python = tmp_path / "versions" / name / "bin/python"
        python.parent.mkdir(parents=True)
        python.touch()
    assert of_pyenv("3.12", tmp_path) == tmp_path / "versions/3.12.10/bin/python"
    assert of_pyenv("3.14", tmp_path) is None
    assert of_pyenv("3.12", tmp_path / "nowhere") is None


def test_module_that_needs_a_newer_release_is_told_by_its_name(tmp_path: Path) -> None:
    """A stand-in for the four rooms, of which one module asks for what the installed release does not have."""
    for room in ("protocol", "averaging", "peer", "coordinator"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("")
    (tmp_path / "peer" / "worker.py").write_text("from json import what_a_newer_release_has\n")
    (tmp_path / "peer" / "daemon.py").write_text("")
    (said,) = broken_imports(Path(sys.executable), {"PYTHONPATH": str(tmp_path)})
    assert said.startswith("import peer.worker: cannot import name 'what_a_newer_release_has'")


def test_answer_of_a_script_is_found_among_what_packages_print() -> None:
    script = "import atexit; atexit.register(print, 'leaked function'); print('a warning'); answer({'a': 1})"
    assert answer_of(Path(sys.executable), script, {}) == {"a": 1}
    with pytest.raises(Failed, match="gave no answer"):
        answer_of(Path(sys.executable), "print('{}')", {})


def test_last_line_of_a_check_names_it_and_says_whether_all_is_well() -> None:
    assert result("floors", []) == "floors: ok"
    assert result("floors", ["x"]) == "floors: 1 problem, not ok"
    assert result("wheels", ["x", "y"]) == "wheels: 2 problems, not ok"
