"""One process that has imported what daemons need serves all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forked import Forked, open_forked


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """The process from which daemons and commands are forked, in tests that do not ask how they start: those of the demo start as from
    a shell.
    """
    with open_forked("peer.daemon", "peer.worker", "coordinator.daemon") as forked:
        yield forked
