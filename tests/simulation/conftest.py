"""Worlds that take a minute are begun when a whole run of the tests begins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.simulation.beside import Beside

HERE: Final = Path(__file__).parent
NUM_OTHERS: Final = 500
"""So many other tests leave time and a processor to play beside; with fewer, a world is played when its test comes."""

_BESIDE = pytest.StashKey[Beside]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin what the collected tests will ask for."""
    if session.config.option.collectonly or sum(HERE not in item.path.parents for item in session.items) < NUM_OTHERS:
        return
    modules = {item.module.__name__: item.module for item in session.items if isinstance(item, pytest.Function)}
    for module in modules.values():
        _beside(session.config).start(getattr(module, "PLAYS", ()))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing runs on."""
    if _BESIDE in config.stash:
        config.stash[_BESIDE].close()


def _beside(config: pytest.Config) -> Beside:
    if _BESIDE not in config.stash:  # this folder's plugins are known only once it is collected
        config.stash[_BESIDE] = Beside()
    return config.stash[_BESIDE]


@pytest.fixture(scope="session")
def beside(pytestconfig: pytest.Config) -> Beside:
    """Worlds that may run already."""
    return _beside(pytestconfig)
