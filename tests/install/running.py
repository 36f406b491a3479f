"""Commands that the checks run, environments that they make, and the words in which they tell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol.tables import several

ROOT: Final = Path(__file__).parents[2]
INSTALL_LIMIT_S: Final = 3600.0
COMMAND_LIMIT_S: Final = 1800.0
LAST_LINES: Final = 15
TOO_MUCH: Final = ("cc", "gcc", "clang", "c++", "git", "make")
"""Programs that an installation must not need."""

_ALL_HELP: Final = """
import contextlib, io, typer, potluck
program, found = typer.main.get_command(potluck.app), {}
def walk(command, words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        program.main([*words, "--help"], prog_name="potluck", standalone_mode=False)
    found[" ".join(words)] = said.getvalue()
    for name, child in (getattr(command, "commands", None) or {}).items():
        walk(child, [*words, name])
walk(program, [])
answer(found)
"""


_ALL_MODULES: Final = """
import importlib, importlib.util, pkgutil, sys
found = {}
for room in ("protocol", "averaging", "peer", "coordinator"):
    for module in pkgutil.walk_packages(importlib.import_module(room).__path__, room + "."):
        if importlib.util.find_spec(module.name).origin.endswith(".py"):  # not a compiled library
            try:
                importlib.import_module(module.name)
                found[module.name] = ""
            except ImportError as error:
                found[module.name] = str(error)
answer(found)
"""

_ANSWER: Final = "answer of the check: "
_ANSWERS: Final = f"""
def answer(value):
    import json
    print("\\n{_ANSWER}" + json.dumps(value), flush=True)
"""
"""Before a script: its answer is a line of its own, whatever packages print while they are loaded and at the end."""


class Failed(Exception):
    """A command failed; the message names it and has the end of what it said."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of packages beside the registry.

    Attributes:
        find_links: folders of wheels.
        torch: the release of torch to take; empty for the one that is resolved.
    """

    find_links: tuple[Path, ...] = ()
    torch: str = ""

    def flags(self) -> list[str]:
        """For pip and uv."""
        return [word for folder in self.find_links for word in ("--find-links", str(folder))]


def say(*lines: str) -> None:
    """Print lines at once, for a check takes long."""
    for line in lines:
        print(line, flush=True)


def result(check: str, problems: Sequence[str]) -> str:
    """The last line of a check."""
    return f"{check}: {several(len(problems), 'problem')}, not ok" if problems else f"{check}: ok"


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    limit_s: float = COMMAND_LIMIT_S,
    log: Path | None = None,
) -> str:
    """Run a command. Returns its output, which goes to `log`, too, if one is given.

    Raises:
        Failed: it could not be started, ended with another code than 0, or took longer than `limit_s`.
    """
    words = [str(word) for word in command]
    shown = " ".join(words[:8]) + (" ..." if len(words) > 8 else "")
    try:
        done = subprocess.run(
            words, cwd=cwd, env=None if environment is None else dict(environment), timeout=limit_s,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            start_new_session=True,  # buildah ends all of its group
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{shown}: not done within {limit_s:.0f} s") from error
    except OSError as error:
        raise Failed(f"{shown}: {error.strerror}") from error
    if log is not None:
        log.write_text(done.stdout, encoding="utf8")
    if done.returncode:
        last = "\n    ".join(done.stdout.strip().splitlines()[-LAST_LINES:])
        raise Failed(f"{shown}: exit code {done.returncode}\n    {last}")
    return done.stdout


def uv() -> str:
    """The program uv.

    Raises:
        Failed: there is none.
    """
    found = shutil.which("uv")
    if found is None:
        raise Failed("uv is not on PATH; install it with: pip install uv")
    return found


def find_python(wanted: str) -> Path | None:
    """The interpreter of a version such as 3.12, or at a path; None if this machine has none. Downloads nothing.

    pyenv's interpreters count, too: its programs on PATH start only those that its owner chose.
    """
    try:
        found = run([uv(), "python", "find", "--no-python-downloads", "--no-project", "--system", wanted])
    except Failed:
        return of_pyenv(wanted, Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"))
    return Path(found.strip().splitlines()[-1])


def of_pyenv(wanted: str, root: Path) -> Path | None:
    """The newest interpreter of a version such as 3.12 that pyenv has below `root`; None if there is none."""
    found = [path for path in root.glob(f"versions/{wanted}.*/bin/python") if _is_release(path.parents[1].name)]
    return max(found, key=lambda path: [int(number) for number in path.parents[1].name.split(".")], default=None)


def _is_release(name: str) -> bool:
    return all(number.isdecimal() for number in name.split("."))


def new_environment(folder: Path, python: Path, *, with_pip: bool = False) -> Path:
    """An empty environment in `folder`. Returns its interpreter."""
    seed = ["--seed"] if with_pip else []
    run([uv(), "venv", "--quiet", "--clear", "--no-project", *seed, "--python", python, folder])
    return folder / "bin/python"


def bare(python: Path, home: Path) -> dict[str, str]:
    """Variables of a machine that has nothing but this environment: neither a compiler nor git nor make.

    Raises:
        Failed: one of them is in the environment's own folder.
    """
    folder = python.parent
    there = [name for name in TOO_MUCH if (folder / name).exists()]
    if there:
        raise Failed(f"{folder} has {', '.join(there)}")
    home.mkdir(parents=True, exist_ok=True)
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "LC_", "LANG"))
    }
    return {**kept, "PATH": str(folder), "HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"}


def answer_of(python: Path, script: str, environment: Mapping[str, str]) -> Any:
    """The JSON value that a script gives to `answer` in an environment.

    Raises:
        Failed: it gave none.
    """
    said = run([python, "-P", "-c", _ANSWERS + script], cwd=python.parent, environment=environment)
    lines = [line for line in said.splitlines() if line.startswith(_ANSWER)]
    if not lines:
        raise Failed(f"{python}: a script of the check gave no answer\n    {said[-500:]}")
    return json.loads(lines[-1].removeprefix(_ANSWER))


def broken_imports(python: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each module of Potluck that cannot be imported. The daemons load most of them only when they run."""
    said: dict[str, str] = answer_of(python, _ALL_MODULES, environment)
    yield from (f"import {module}: {problem}" for module, problem in said.items() if problem)
    say(f"  imported {len(said)} modules")


def broken_command_line(python: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each command that has no help, and for a program that does not start."""
    potluck = python.parent / "potluck"
    for word, expected in (("--version", "potluck "), ("--help", "Usage: potluck")):
        said = run([potluck, word], cwd=python.parent, environment=environment)
        if expected not in said:
            yield f"potluck {word} says: {said[:200]}"
    helps: dict[str, str] = answer_of(python, _ALL_HELP, environment)
    yield from (
        f"potluck {words} --help shows no usage" for words, said in helps.items() if "Usage: potluck" not in said
    )
    say(f"  asked {len(helps)} commands for their help")
