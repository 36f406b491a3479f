from __future__ import annotations

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.install.release import LIBRARY, NEEDED, names_in, problems_of, release_in, rooms
from tests.install.running import ROOT, Failed

COMPILED = "potluck_train-0.1.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
PURE = "potluck_train-0.1.0-py3-none-any.whl"
SDIST = "potluck_train-0.1.0.tar.gz"
INFO = "potluck_train-0.1.0.dist-info/RECORD"


@pytest.mark.parametrize(
    ("file", "names"),
    [
        (COMPILED, [*NEEDED, INFO, LIBRARY]),
        (PURE, [*NEEDED, INFO]),
        (SDIST, [*NEEDED, "PKG-INFO", "docker/Dockerfile"]),
    ],
)
def test_file_of_a_release_has_no_problem(file: str, names: list[str]) -> None:
    assert list(problems_of(file, names)) == []


@pytest.mark.parametrize("name", ["tests/conftest.py", "peer/tests/world.py", "peer/test_daemon.py", "conftest.py"])
@pytest.mark.parametrize("file", [PURE, SDIST])
def test_tests_that_travel_are_told(file: str, name: str) -> None:
    assert any("tests travel" in problem for problem in problems_of(file, [*NEEDED, name]))


@pytest.mark.parametrize(
    ("file", "names", "found"),
    [
        (PURE, NEEDED[1:], "missing: potluck.py"),
        (PURE, [*NEEDED, "peer/__pycache__/daemon.cpython-311.pyc"], "files of a machine travel"),
        (PURE, [*NEEDED, "peer/identity.key"], "files of a machine travel"),
        (PURE, [*NEEDED, "docker/Dockerfile"], "installs docker beside"),
        (PURE, [*NEEDED, LIBRARY], "whose tag is not manylinux"),
        (PURE.replace("any", "linux_x86_64"), [*NEEDED, LIBRARY], "whose tag is not manylinux"),
        (PURE.replace("any", "linux_x86_64"), NEEDED, "not of every machine"),
        (COMPILED.replace("2_17", "2_36"), [*NEEDED, LIBRARY], "glibc 2.36"),
        (COMPILED.replace("py3-none", "cp311-cp311"), [*NEEDED, LIBRARY], "names a Python"),
        (SDIST, [*NEEDED, LIBRARY], "is in the source archive"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(file: str, names: list[str], found: str) -> None:
    told = list(problems_of(file, names))
    assert len(told) == 1
    assert found in told[0]


def test_names_are_those_of_the_files_in_either_archive(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.mkdir("peer")
        wheel.write(tmp_path / "a.py", "peer/a.py")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as source:
        source.add(tmp_path / "a.py", "x-1.0/peer/a.py")
    assert names_in(tmp_path / "x.whl") == names_in(tmp_path / "x.tar.gz") == ["peer/a.py"]


def test_release_that_lacks_a_file_is_none(tmp_path: Path) -> None:
    for name in (SDIST, COMPILED):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(Failed, match=r"0 files \*-any\.whl in "):
        release_in(tmp_path)


def test_neither_archive_takes_the_tests_and_both_take_the_rooms() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["hatch"]["build"]["targets"]
    assert rooms() == {"potluck.py", "protocol", "averaging", "peer", "coordinator"}
    for target in ("wheel", "sdist"):
        taken = set(targets[target]["only-include"])
        assert rooms() <= taken
        assert not taken & {"tests", "Makefile"}, "the Makefile's targets need the tests"
        assert all((ROOT / path).exists() for path in taken)
