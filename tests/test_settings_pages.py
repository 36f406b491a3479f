"""The pages of settings are those that the settings make, and every key has its description there."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.run.manifest import RunConfig
from tests.settings_pages import COMMAND, pages

PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_page_is_current(path: Path) -> None:
    is_current = path.exists() and path.read_text(encoding="utf8") == PAGES[path]
    assert is_current, f"{path.name} is not what its settings say: {COMMAND}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_every_setting_has_a_sentence_that_says_what_it_is(path: Path) -> None:
    rows = [line for line in PAGES[path].splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if not row.endswith(". |") or len(row.split(" | ")[-1]) < 10] == []


def test_every_section_of_a_run_is_on_the_hosts_page() -> None:
    (page,) = (text for path, text in PAGES.items() if path.parent.name == "coordinator")
    assert [name for name in RunConfig.model_fields if f"[{name}]" not in page] == []
