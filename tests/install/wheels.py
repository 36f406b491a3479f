"""Installed without a clone: wheel and sdist in empty environments that have neither a compiler nor git nor make."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.install.one_round import PEER_IS_DONE, one_host, write_run_of_one_round
from tests.install.release import Release, build_release, problems_of, release_in
from tests.install.running import (
    INSTALL_LIMIT_S,
    Failed,
    Sources,
    answer_of,
    bare,
    broken_command_line,
    find_python,
    new_environment,
    run,
    say,
    uv,
)

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
DEMO_LIMIT_S: Final = 1500.0
NOT_COMPILED: Final = "not compiled"
DOCTOR_TRIES: Final = 3
"""On a busy machine the first import of torch may take longer than doctor waits for it."""

_INSTALLED: Final = """
from importlib.metadata import files
from averaging.codecs.compiled import problem
answer({"files": [str(path) for path in files("potluck-train")], "codecs": problem()})
"""


def try_wheels(
    folder: Path, pythons: Sequence[str], sources: Sources, installer: str, built: Path | None = None
) -> list[str]:
    """Try each file of the release on each Python. Returns what failed; says which Pythons could not be had. The release is built, or
    is in the folder `built`.
    """
    release = build_release(folder / "dist") if built is None else release_in(built)
    say(*(f"{'built' if built is None else 'found'} {path.name}" for path in release))
    problems: list[str] = []
    found = {wanted: find_python(wanted) for wanted in pythons}
    there = [python for python in found.values() if python is not None]
    kept: Path | None = None
    for python in there:
        version = run([python, "-c", "import platform; print(platform.python_version())"]).strip()
        for archive in (release.compiled, release.sdist):
            name = f"Python {version}, {'wheel' if archive is release.compiled else 'sdist'}"
            say(f"== {name}")
            at = folder / version / archive.suffix.lstrip(".")
            failed = [f"{name}: {problem}" for problem in _caught(_trial(at, python, archive, sources, installer))]
            problems += failed
            if kept is None:
                kept = at / "env/bin/python"
            elif not failed:
                shutil.rmtree(at / "env")  # torch with CUDA is large
    say(*(f"NOT TRIED: Python {wanted} is not on this machine" for wanted, python in found.items() if python is None))
    if kept is None:
        return [*problems, "no Python was tried"]
    problems += _caught(_pure_trial(folder / "pure", kept, release))
    return problems + _caught(_run_by_uvx(folder / "uvx", there[0], release, sources))


def _caught(trial: Iterator[str]) -> list[str]:
    """All sentences of a trial; that of its failure is the last."""
    found = []
    try:
        found.extend(trial)
    except Failed as error:
        found.append(str(error))
    return found


def _trial(folder: Path, interpreter: Path, archive: Path, sources: Sources, installer: str) -> Iterator[str]:
    shutil.rmtree(folder, ignore_errors=True)
    python = new_environment(folder / "env", interpreter, with_pip=installer == "pip")
    environment = {"PIP_CACHE_DIR": str(folder.parent.parent / "pip-cache"), **bare(python, folder / "home")}
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
    if installer == "uv":
        pip = [uv(), "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    constraint = folder / "constraint.txt"
    constraint.write_text(f"torch=={sources.torch}\n" if sources.torch else "", encoding="ascii")
    run(
        [*pip, *sources.flags(), "-c", constraint, archive],
        cwd=folder,
        environment=environment,
        limit_s=INSTALL_LIMIT_S,
    )
    yield from _installed(python, environment, is_compiled=archive.suffix == ".whl")
    yield from broken_command_line(python, environment)
    yield from _demo(python, folder, environment)


def _installed(python: Path, environment: Mapping[str, str], *, is_compiled: bool) -> Iterator[str]:
    """Look at the installed files, and at the words of `doctor` on the codecs."""
    found = answer_of(python, _INSTALLED, environment)
    names = [name for name in found["files"] if not name.startswith("..") and "__pycache__" not in name]
    yield from (p for p in problems_of("installed", names) if p.startswith("tests"))
    if (not found["codecs"]) != is_compiled:
        yield f"codecs: {found['codecs'] or 'compiled, without a compiler'}"
    told: list[str] = []
    for _ in range(DOCTOR_TRIES):
        told = told or [line for line in _doctor(python, environment).splitlines() if "codecs" in line]
    if not told or (NOT_COMPILED in " ".join(told)) == is_compiled:
        yield f"`potluck doctor` says of the codecs: {' '.join(told) or 'nothing'}"


def _doctor(python: Path, environment: Mapping[str, str]) -> str:
    """The findings of `potluck doctor`. Its exit code does not count: the machine may have other faults."""
    done = subprocess.run(
        [python.parent / "potluck", "doctor"], cwd=python.parent, env=dict(environment), timeout=600,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def _demo(python: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    summary = folder / "summary.json"
    command = [python.parent / "potluck", "demo", "--one-round", "--dir", folder / "demo", "--json", summary]
    limit = ["--limit-s", str(DEMO_LIMIT_S)]
    run([*command, *limit], cwd=folder, environment=environment, limit_s=DEMO_LIMIT_S + 120, log=folder / "demo.log")
    rounds = json.loads(summary.read_text())["rounds_committed"]
    say(f"  the demo committed {rounds} round{'s' if rounds > 1 else ''}")
    if rounds < 1:
        yield "the demo committed no round"


def _pure_trial(folder: Path, python: Path, release: Release) -> Iterator[str]:
    """The pure wheel in place of the compiled one, in an environment that has all it depends on."""
    say("== the pure wheel")
    environment = bare(python, folder / "home")
    replace = [uv(), "pip", "install", "--quiet", "--no-deps", "--reinstall", "--python", python, release.pure]
    run(replace, environment={**os.environ, "PATH": environment["PATH"]})
    yield from _installed(python, environment, is_compiled=False)


def _run_by_uvx(folder: Path, interpreter: Path, release: Release, sources: Sources) -> Iterator[str]:
    """`uvx --from WHEEL potluck ...`, without an environment that anybody made."""
    say("== uvx")
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    constraint = folder / "constraint.txt"
    constraint.write_text(f"torch=={sources.torch}\n" if sources.torch else "", encoding="ascii")
    uvx = [
        uv(),
        "tool",
        "run",
        "--python",
        interpreter,
        "--constraints",
        constraint,
        *sources.flags(),
        "--from",
        release.compiled,
    ]
    environment = {
        **os.environ,
        "HOME": str(home),
        "UV_CACHE_DIR": run([uv(), "cache", "dir"]).strip(),
        "NO_COLOR": "1",
    }
    said = run([*uvx, "potluck", "--version"], cwd=folder, environment=environment, limit_s=INSTALL_LIMIT_S)
    if not said.strip().splitlines()[-1].startswith("potluck "):
        yield f"uvx: {said}"
    yield from _join_by_uvx(uvx, folder, environment)


def _join_by_uvx(uvx: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """A host and a peer that somebody starts with one line each, until the run of one round is over."""
    run_file = write_run_of_one_round(folder)
    host_words = [*uvx, "potluck", "host", run_file, "--state-dir", folder / "host", "--listen-host", "127.0.0.1"]
    with one_host(host_words, folder, environment) as invite:
        peer = [
            "potluck",
            "join",
            invite,
            "--state-dir",
            folder / "peer",
            "--listen-host",
            "127.0.0.1",
            "--device",
            "cpu",
        ]
        said = run([*uvx, *peer], cwd=folder, environment=environment, limit_s=DEMO_LIMIT_S, log=folder / "peer.log")
    if PEER_IS_DONE not in said:
        yield f"uvx: the peer ended before its run did: {said[-500:]}"
    say("  uvx: a peer joined a host and trained its run to the end")
