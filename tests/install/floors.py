"""The declared ranges: the lowest releases that pyproject.toml allows, and the newest, each in an environment of its own.

`floors.txt` holds the lower bounds that were tried last. A bound that is changed and not tried fails test_floors.py.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from protocol.tables import several
from tests.install.running import (
    INSTALL_LIMIT_S,
    ROOT,
    Failed,
    Sources,
    broken_command_line,
    broken_imports,
    find_python,
    new_environment,
    run,
    say,
    uv,
)

FLOORS_PYTHON: Final = "3.11"
"""The lowest Python, which has wheels of the lowest releases."""

TRIED: Final = Path(__file__).with_name("floors.txt")
EXTRAS: Final = ("hf", "tensorboard", "wandb")
"""Those whose releases are tried here. `small` asks for a newer torch, which would hide the lowest: `python -m tests.install.extras`
tries it in an environment of its own. The tools of `make check` have the releases of constraints.txt as their bounds.
"""

TRIED_EXTRAS: Final = ("tensorboard", "wandb")
"""Those of them that extras.py puts to work; `hf` is used by the tests below."""

TOOLS: Final = ("pytest", "pytest-timeout", "hypothesis", "pyyaml", "hatchling")
"""Only what the tests need, in whatever releases go with the ones that are tried."""

TESTS: Final = (
    "tests/protocol/host",
    "tests/protocol/identity",
    "tests/protocol/run",
    "tests/protocol/rounds/messages",
    "tests/protocol/tensors",
    "tests/golden/test_wire_bytes.py",
    "tests/golden/test_saved_folders.py",
    "tests/averaging/codecs",
    "tests/averaging/data/sources",
    "tests/averaging/data/test_tokenizer.py",
    "tests/averaging/data/test_vocabulary.py",
    "tests/averaging/host",
    "tests/coordinator/ledger",
    "tests/coordinator/status",
    "tests/peer/models/test_decoder.py",
    "tests/peer/training/test_local_training.py",
    "tests/peer/training/optimizers/test_adamw.py",
    "tests/peer/training/optimizers/test_muon.py",
    "tests/peer/models/test_sampling.py",
    "tests/peer/settings",
    "tests/peer/status",
    "tests/test_front_door.py",
)
"""Every dependency is used in one of these, or in extras.py; what needs Python alone is left out. No benchmark is among them, which
may need what only newer releases have.
"""

_BOUND: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9.]+)")


def declared_floors(pyproject: str) -> dict[str, str]:
    """The lower bound of each dependency, those of the extras included, by name as pyproject.toml writes it.

    Raises:
        Failed: one has no lower bound, or two that differ.
    """
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    found: dict[str, str] = {}
    for line in (*project["dependencies"], *(line for name in EXTRAS for line in extras.get(name, ()))):
        match = _BOUND.match(line)
        if match is None:
            raise Failed(f"pyproject.toml: {line!r} has no lower bound")
        if found.setdefault(match[1], match[2]) != match[2]:
            raise Failed(f"pyproject.toml: {match[1]} has the lower bounds {found[match[1]]} and {match[2]}")
    return found


def pins_of(requirements: str) -> dict[str, str]:
    """name -> release of the lines `name==release`; other lines are left out."""
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in requirements.splitlines())
    return {name: release for name, equal, release in (line.partition("==") for line in lines) if equal}


def untried(declared: Mapping[str, str], tried: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each bound that is not the one tried."""
    for name in sorted(declared.keys() | tried.keys()):
        now, then = declared.get(name), tried.get(name)
        if now is None:
            yield f"{name} is no dependency any more, and floors.txt has it"
        elif then is None:
            yield f"{name}>={now} was never tried"
        elif now != then:
            yield f"{name}>={now} was never tried; {then} was"


def not_at_its_floor(declared: Mapping[str, str], pins: Mapping[str, str], excused: Collection[str]) -> Iterator[str]:
    """One sentence for each dependency that was resolved to another release than its bound: the bound then says too little."""
    for name, release in declared.items():
        resolved = pins.get(name.lower().replace("_", "-"), "nothing")
        if name not in excused and _numbers(resolved) != _numbers(release):
            yield f"{name}>={release} resolves to {resolved}: others ask for more, so declare that"


def _numbers(release: str) -> list[str]:
    numbers = release.partition("+")[0].split(".")
    while len(numbers) > 1 and numbers[-1] == "0":
        numbers.pop()
    return numbers


def try_floors(folder: Path, python: str, sources: Sources) -> list[str]:
    """Both ends of the ranges. Returns what failed; floors.txt is written when nothing did and torch is at its bound, too."""
    interpreter = find_python(python)
    if interpreter is None:
        return [f"Python {python} is not on this machine"]
    declared = declared_floors((ROOT / "pyproject.toml").read_text(encoding="utf8"))
    problems = []
    for resolution in ("lowest-direct", "highest"):
        say(f"== {resolution}")
        try:
            pins = _resolved(folder, interpreter, resolution, sources)
            say(f"  installing {several(len(pins_of(pins.read_text())), 'package')}")
            if resolution == "lowest-direct":
                problems += not_at_its_floor(declared, pins_of(pins.read_text()), {"torch"} if sources.torch else ())
            problems += _tried(folder / resolution, interpreter, pins, sources)
        except Failed as error:
            problems.append(f"{resolution}: {error}")
    if sources.torch:
        say(f"torch was {sources.torch}, not the one that the range has; floors.txt is left as it is")
    elif not problems:
        TRIED.write_text("".join(f"{name}=={release}\n" for name, release in declared.items()), encoding="ascii")
        say(f"{TRIED.name} has the {several(len(declared), 'lower bound')} that were tried")
    return problems


def _resolved(folder: Path, python: Path, resolution: str, sources: Sources) -> Path:
    pins, override = folder / f"{resolution}.txt", folder / "override.txt"
    override.write_text(f"torch=={sources.torch}\n" if sources.torch else "", encoding="ascii")
    extras = [word for name in EXTRAS for word in ("--extra", name)]
    run(
        [uv(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", python, *extras,
         "--resolution", resolution, "--override", override, *sources.flags(), "--output-file", pins, ROOT / "pyproject.toml"],
        environment=_without_caps(),
    )  # fmt: skip
    return pins


def _tried(folder: Path, interpreter: Path, pins: Path, sources: Sources) -> list[str]:
    python = new_environment(folder, interpreter)
    install: Sequence[str | Path] = [uv(), "pip", "install", "--quiet", "--python", python, *sources.flags()]
    for what in (["--no-deps", "--requirement", pins], ["--constraint", pins, *TOOLS], ["--no-deps", ROOT]):
        run([*install, *what], environment=_without_caps(), limit_s=INSTALL_LIMIT_S)
    home = folder / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "COLUMNS": "200", "NO_COLOR": "1", "GRPC_VERBOSITY": "ERROR"}
    # Warnings of old and new releases are theirs; pyproject.toml makes them errors for the pinned ones.
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", *TESTS]
    problems: list[str] = []
    try:
        problems += broken_command_line(python, environment)
        problems += broken_imports(python, environment)
        run(
            [python, "-m", "tests.install.extras", folder / "extras", *TRIED_EXTRAS],
            environment=environment,
            log=folder / "extras.log",
        )
        say("  running the tests")
        said = run(pytest, environment=environment, limit_s=INSTALL_LIMIT_S, log=folder / "pytest.log")
        say(f"  {said.strip().splitlines()[-1]}")
    except Failed as error:
        problems.append(str(error))
    return [f"{folder.name}: {problem}" for problem in problems]


def _without_caps() -> dict[str, str]:
    """This machine's variables but those that hold back or raise releases."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_RESOLUTION")
    }
