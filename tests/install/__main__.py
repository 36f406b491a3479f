"""`python -m tests.install floors|wheels|debian|images|build`: tries for real how strangers install Potluck.

    floors   the lowest releases that pyproject.toml declares, and the newest: the command line and a fixed set of tests in each
    wheels   wheel and sdist in empty environments without a compiler, git and make: `potluck demo --one-round` in each
    debian   the same on a whole Debian by debootstrap, whose newest suite has a Python that this machine may lack
    images   each target of docker/Dockerfile by buildah, and a host and a peer in containers for a round
    build    sdist, compiled wheel and pure wheel into a folder, and nothing else

Needs uv (`pip install uv`) and the package registry; `debian` and `images` need root, buildah and debootstrap (Debian: apt-get
install), and `images` starts compose.yml where podman starts containers. Ends with 1 if anything failed, and says what could not be
tried.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.install.debian import SUITES, try_debian
from tests.install.floors import FLOORS_PYTHON, try_floors
from tests.install.images import TARGETS, try_images
from tests.install.release import build_release
from tests.install.running import Failed, Sources, result, say
from tests.install.wheels import PYTHONS, try_wheels


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one check. Returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="potluck-install-") as temporary:
            folder = (given.dir or Path(temporary)).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            problems = _check(given, folder)
    except Failed as error:
        problems = [str(error)]
    say(*(f"FAILED: {problem}" for problem in problems), result(given.check, problems))
    return 1 if problems else 0


def _check(given: argparse.Namespace, folder: Path) -> list[str]:
    if given.check == "build":
        say(*(f"built {path}" for path in build_release(folder)))
        return []
    sources = Sources(tuple(given.find_links), given.torch)
    if given.check == "floors":
        return try_floors(folder, given.python or FLOORS_PYTHON, sources)
    if given.check == "images":
        return try_images(folder, given.target or list(TARGETS), sources)
    if given.check == "debian":
        return try_debian(folder, given.suite or list(SUITES), sources, given.built)
    return try_wheels(folder, given.python or list(PYTHONS), sources, given.installer, given.built)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.install", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    checks = parser.add_subparsers(dest="check", required=True)
    for name in ("floors", "wheels", "debian", "images", "build"):
        check = checks.add_parser(name)
        check.add_argument("--dir", type=Path, help="keep everything here, for a look; a temporary folder if not given")
        if name == "build":
            continue
        check.add_argument(
            "--find-links", type=Path, action="append", default=[], help="a folder of wheels to use, too"
        )
        check.add_argument("--torch", default="", help="this torch instead of the one resolved, such as 2.13.0+cpu")
        if name == "floors":
            check.add_argument("--python", help=f"a version, or an interpreter's path; {FLOORS_PYTHON} if not given")
        if name == "wheels":
            versions = ", ".join(PYTHONS)
            check.add_argument("--python", action="append", help=f"as often as wanted; {versions} if not given")
            check.add_argument("--installer", choices=("pip", "uv"), default="pip", help="uv unpacks large wheels once")
        if name == "debian":
            suites = ", ".join(SUITES)
            check.add_argument("--suite", action="append", help=f"as often as wanted; {suites} if not given")
        if name in ("wheels", "debian"):
            check.add_argument("--built", type=Path, help="a folder with a release, for a machine without a compiler")
        if name == "images":
            check.add_argument(
                "--target", action="append", choices=TARGETS, help="as often as wanted; all if not given"
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
