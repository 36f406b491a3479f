"""Two processes of tests import all test files. One begins at the other end, and each reads what the other has compiled by then.

Rewriting the asserts of a file takes most of the time of its import. pytest keeps the result beside the file, as Python does with what
it compiles, so every file is rewritten by one of the two alone.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent


def keep_compiled() -> None:
    """Keep what is compiled from here on, whatever the environment says: several processes need the same."""
    sys.dont_write_bytecode = False


def begins_at_the_end(config: pytest.Config) -> bool:
    """Whether this is every other one of several processes that run all tests."""
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(worker.removeprefix("gw")) % 2 == 1 and [Path(each).resolve() for each in config.args] == [TESTS]


def import_from_the_end(files: list[Path], root: Path) -> None:
    """Import test files, the last one first, under the names by which pytest finds them again. One that fails is left to pytest, which
    says why.
    """
    for file in reversed(files):
        with suppress(Exception):
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))
