from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from peer.settings.exit_codes import EXIT_CODES, exit_code_lines
from protocol.errors import PotluckError

README = Path(__file__).parents[3] / "README.md"


def _tree(kind: type[PotluckError]) -> Iterator[type[PotluckError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def test_every_error_of_the_tree_has_a_documented_code() -> None:
    assert {kind.exit_code for kind in _tree(PotluckError)} <= set(EXIT_CODES)


def test_every_code_has_a_cause_and_a_cure() -> None:
    assert all(row.cause and row.cure for row in EXIT_CODES.values())


def test_table_has_a_line_for_each_code() -> None:
    assert exit_code_lines().count("\n\n") == len(EXIT_CODES) - 1


def test_readme_shows_the_table_as_it_is() -> None:
    rows = [f"| {code} | {row.cause} | {row.cure} |" for code, row in EXIT_CODES.items()]
    table = "\n".join(["| code | cause | what to do |", "|---|---|---|", *rows])
    assert table in README.read_text(encoding="utf8")
