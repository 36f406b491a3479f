"""One trained world serves all tests here."""

from __future__ import annotations

import pytest

from tests.peer.audits.redone_world import World, contributed


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A round of four peers; a test that changes a trainer puts its state back."""
    return contributed(tmp_path_factory.mktemp("text"))
