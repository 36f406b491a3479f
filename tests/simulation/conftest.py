"""Worlds that take a minute are begun when a whole run of the tests begins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.simulation.beside import Beside, Play

HERE: Final = Path(__file__).parent
NUM_OTHERS: Final = 500
"""So many other tests leave time and a processor to play beside; with fewer, a world is played when its test comes."""

_BESIDE = pytest.StashKey[Beside]()
_PLAYS = pytest.StashKey[list[Play]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin what the collected tests will ask for; one of several processes does once it is known to be the one that asks."""
    config = session.config
    if config.option.collectonly or sum(HERE not in item.path.parents for item in session.items) < NUM_OTHERS:
        return
    modules = {item.module.__name__: item.module for item in session.items if isinstance(item, pytest.Function)}
    config.stash[_PLAYS] = [play for module in modules.values() for play in getattr(module, "PLAYS", ())]
    if not hasattr(config, "workerinput"):
        _beside(config).start(config.stash[_PLAYS])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """The worlds are asked for at the end of the lane of the swarms (tests/lanes.py): begin them with it."""
    config = item.config
    if hasattr(config, "workerinput") and _PLAYS in config.stash:
        from tests.lanes import SWARMS, lane_of

        if lane_of(item.nodeid) == SWARMS:
            _beside(config).start(config.stash[_PLAYS])


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
