"""Python processes that Potluck starts: they run the same installed files as this process, and nothing from the current folder.

Imports nothing heavy: the front door starts the first such process before it loads the daemon.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CHILD_FOLDER: Final = "/"
"""The current folder of a child. Nobody but the machine's administrator puts files there, and it is never unmounted."""

_ROOT: Final = Path(__file__).absolute().parents[2]
"""The folder that holds Potluck's packages: a source tree, or a folder of installed packages."""


def python_command(*arguments: str) -> list[str]:
    """The command of a Python process with these arguments, as ("-m", "peer.worker"). `-P` keeps the current folder off its import
    path.
    """
    return [sys.executable, "-P", *arguments]


def child_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for `python_command`: PYTHONPATH names the folder of this Potluck, where Python does not find it by itself,
    and never the current folder. Its relative entries become absolute, since a child has another current folder.
    """
    own = [] if _is_found_anyway(_ROOT) else [str(_ROOT)]
    given = [
        os.path.abspath(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if _names_other(entry)
    ]
    entries = dict.fromkeys((*own, *given))
    rest = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**rest, "PYTHONPATH": os.pathsep.join(entries)} if entries else rest


def _names_other(entry: str) -> bool:
    """Whether an entry of PYTHONPATH means another folder than the current one. An empty entry means the current one, and mostly
    comes from joining an empty variable.
    """
    return os.path.isabs(entry) or os.path.normpath(entry or ".") != "."


def _is_found_anyway(root: Path) -> bool:
    """Whether it is a folder of installed packages, which every Python searches after its own library."""
    known = (*site.getsitepackages(), site.getusersitepackages())
    return os.path.realpath(root) in map(os.path.realpath, known)
