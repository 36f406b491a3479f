"""The rules of a round stand in one document, and whoever cites one cites a rule that is there and says where it stands."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, Module, modules

RULES = "protocol/rounds/RULES.md"
MOST_WORDS = 60
CITED = re.compile(r"\bR([1-9]\d?)(?: to R([1-9]\d?))?\b")
ADDRESS = re.compile(r"^Rules: (.*) \(" + re.escape(RULES) + r"\)\.$", re.M)


def _chapters() -> dict[int, str]:
    """The text under each heading `## R12 Suspect and mend`, by the number of the rule."""
    _, *rules = re.split(r"^## R(?=\d)", (ROOT / RULES).read_text(encoding="utf8"), flags=re.M)
    return {int(rule.split(maxsplit=1)[0]): rule.partition("\n")[2] for rule in rules}


CHAPTERS = _chapters()


def _prose(module: Module) -> str:
    """Its docstrings and comments but for the line that says where the rules stand."""
    nodes = [node for node in module.nodes if isinstance(node, ast.Expr)]
    strings = [node.value.value for node in nodes if isinstance(node.value, ast.Constant)]
    comments = re.findall(r"#(.*)$", module.text, flags=re.M)
    return ADDRESS.sub("", "\n".join([*(each for each in strings if isinstance(each, str)), *comments]))


def _cited(text: str) -> set[int]:
    found = ((int(first), int(last or first)) for first, last in CITED.findall(text))
    return {number for first, last in found for number in range(first, last + 1)}


@cache
def _citing() -> tuple[tuple[Module, set[int]], ...]:
    """Modules that cite rules, but for the tests of this folder, and which they cite."""
    everything = [module for module in (*modules(), *modules("tests")) if CITED.search(module.text)]
    found = [(module, _cited(_prose(module))) for module in everything]
    return tuple((module, cited) for module, cited in found if cited and "architecture" not in module.path)


def test_rules_are_numbered_without_a_gap() -> None:
    assert list(CHAPTERS) == list(range(1, len(CHAPTERS) + 1))


def test_every_cited_rule_exists() -> None:
    assert [(module.path, cited - set(CHAPTERS)) for module, cited in _citing() if cited - set(CHAPTERS)] == []


def test_a_module_that_cites_rules_says_which_and_where_they_stand() -> None:
    wrong = []
    for module, cited in _citing():
        address = ADDRESS.search(ast.get_docstring(module.tree) or "")
        if address is None or _cited(address.group(1)) != cited:
            expected = ", ".join(f"R{number}" for number in sorted(cited))
            wrong.append(f'{module.path}: expected "Rules: {expected} ({RULES})." in its docstring')
    assert wrong == []


def test_nobody_cites_a_rule_without_its_letter() -> None:
    everything = [module for module in (*modules(), *modules("tests")) if "rule" in module.text]
    assert [module.path for module in everything if re.search(r"\brules? \d", module.text)] == []


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_rule_is_short_says_why_and_names_its_files_and_its_test(number: int) -> None:
    rule, why, where = CHAPTERS[number].strip().split("\n\n")
    assert len(rule.split()) <= MOST_WORDS
    assert why.startswith("*Why:* ")
    carried, held = where.split("\n- Test: ")
    paths = re.findall(r"`([^`]+)`", carried)
    assert paths, "expected the files that carry the rule"
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    path, name = re.findall(r"`([^`]+)::(test_\w+)`", held)[0]
    assert re.search(rf"def {name}\(", Path(ROOT / path).read_text(encoding="utf8"))
