"""A release on a whole Debian that has Python and neither a compiler nor git nor make: a root file system of its own, by debootstrap.

A suite brings the Python that it has: Debian 12 has 3.11, Debian 13 has 3.13, and sid the newest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.install.buildah import Buildah, base_of, make_base
from tests.install.release import Release, build_release, release_in
from tests.install.running import TOO_MUCH, Failed, Sources, say
from tests.install.wheels import DEMO_LIMIT_S, NOT_COMPILED

SUITES: Final = ("sid",)
_POTLUCK: Final = "/env/bin/potluck"


def try_debian(folder: Path, suites: Sequence[str], sources: Sources, built: Path | None = None) -> list[str]:
    """Try wheel and sdist in each suite. Returns what failed. The release is built, or is in the folder `built`."""
    release = build_release(folder / "dist") if built is None else release_in(built)
    buildah, problems = Buildah(folder), []
    for suite in suites:
        try:
            make_base(buildah, folder, suite)
            problems += [f"{suite}: {problem}" for problem in _suite(buildah, folder, suite, release, sources)]
        except Failed as error:
            problems.append(f"{suite}: {error}")
    return problems


class _Machine:
    """A shell in a container of the suite, with the release below /dist."""

    def __init__(self, buildah: Buildah, folder: Path, suite: str, dist: Path, sources: Sources) -> None:
        (folder / "pip-cache").mkdir(exist_ok=True)
        mounts = {dist: "/dist", folder / "pip-cache": "/root/.cache/pip"} | {
            path: str(path) for path in sources.find_links
        }
        self._buildah = buildah
        self._volumes = [word for path, at in mounts.items() for word in ("--volume", f"{path}:{at}")]
        self._log = folder / f"{suite}.log"
        self.name = buildah.start(base_of(suite))

    def __call__(self, script: str) -> str:
        """Run a script of the shell. Returns its output."""
        return self._buildah("run", *self._volumes, self.name, "--", "sh", "-c", script, log=self._log).strip()


def _suite(buildah: Buildah, folder: Path, suite: str, release: Release, sources: Sources) -> Iterator[str]:
    machine = _Machine(buildah, folder, suite, release.sdist.parent, sources)
    try:
        there = machine(f"for name in {' '.join(TOO_MUCH)}; do command -v $name; done; true")
        if there:
            yield f"this Debian has {there}"
        pins = " ".join([*sources.flags(), *([f"torch=={sources.torch}"] if sources.torch else [])])
        for archive in (release.compiled, release.sdist):
            say(f"== {suite}, {machine('python3 --version')}, {archive.name}")
            machine(f"rm -rf /env && python3 -m venv /env && /env/bin/pip install --quiet {pins} /dist/{archive.name}")
            yield from _codecs(machine, is_compiled=archive is release.compiled)
            yield from _demo(machine)
        say(f"== {suite}, {release.pure.name}")
        machine(f"/env/bin/pip install --quiet --no-deps --force-reinstall /dist/{release.pure.name}")
        yield from _codecs(machine, is_compiled=False)
    finally:
        buildah("rm", machine.name)


def _codecs(machine: _Machine, *, is_compiled: bool) -> Iterator[str]:
    """Whether `potluck doctor` says that the codecs are compiled. Its exit code does not count: a container has other faults."""
    told = [line for line in machine(f"{_POTLUCK} doctor || true").splitlines() if "codecs" in line]
    if not told or (NOT_COMPILED in " ".join(told)) == is_compiled:
        yield f"`potluck doctor` says of the codecs: {' '.join(told) or 'nothing'}"


def _demo(machine: _Machine) -> Iterator[str]:
    limit = f"--limit-s {DEMO_LIMIT_S}"
    machine(f"rm -rf /demo && {_POTLUCK} demo --one-round --dir /demo --json /summary.json {limit}")
    rounds = int(json.loads(machine("cat /summary.json"))["rounds_committed"])
    say(f"  the demo committed {rounds} round{'s' if rounds > 1 else ''}")
    if rounds < 1:
        yield "the demo committed no round"
