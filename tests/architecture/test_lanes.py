"""Worlds that are played beside the other tests are asked for by the process that begins them. Another one would play them again."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import Module, modules
from tests.lanes import SWARMS, lane_of


def _names_plays(module: Module) -> bool:
    """Whether it has a list that tests/simulation/conftest.py begins."""
    return any(isinstance(node, ast.Name) and node.id == "PLAYS" for node in ast.walk(module.tree))


PLAYED = [module.path for module in modules("tests") if "/test_" in module.path and _names_plays(module)]


def test_there_are_files_whose_worlds_are_played_beside() -> None:
    assert len(PLAYED) >= 4


@pytest.mark.parametrize("path", PLAYED)
def test_a_file_whose_worlds_are_played_beside_is_in_the_lane_that_begins_them(path: str) -> None:
    assert lane_of(f"{path}::test") == SWARMS
