from __future__ import annotations

from collections.abc import Iterator

from peer.exit_codes import EXIT_CODES, exit_code_lines
from protocol.errors import PotluckError


def _tree(kind: type[PotluckError]) -> Iterator[type[PotluckError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def test_every_error_of_the_tree_has_a_documented_code() -> None:
    assert {kind.exit_code for kind in _tree(PotluckError)} <= set(EXIT_CODES)


def test_table_has_a_line_for_each_code() -> None:
    assert exit_code_lines().count("\n\n") == len(EXIT_CODES) - 1
