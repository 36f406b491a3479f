"""Which process of tests imports the files from the other end, and that a broken file is left to pytest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.shared_imports import TESTS, begins_at_the_end, import_from_the_end


@pytest.mark.parametrize(
    ("worker", "args", "begins"),
    [
        ("gw0", (TESTS,), False),
        ("gw1", (TESTS,), True),
        ("gw1", (TESTS / "peer",), False),
        ("gw1", (TESTS, TESTS / "peer"), False),
        (None, (TESTS,), False),
    ],
)
def test_the_second_process_of_a_whole_run_begins_at_the_end(
    worker: str | None, args: tuple[Path, ...], begins: bool
) -> None:
    config = SimpleNamespace(args=[str(each) for each in args])
    if worker is not None:
        config.workerinput = {"workerid": worker}
    assert begins_at_the_end(cast(pytest.Config, config)) is begins


def test_files_are_imported_the_last_one_first_and_one_that_fails_keeps_no_other_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "shared_imports_here"
    folder.mkdir()
    bodies = {"test_a": "from shared_imports_here import seen; seen.NAMES.append('a')", "test_b": "1 / 0"}
    bodies["test_c"] = "from shared_imports_here import seen; seen.NAMES.append('c')"
    for name, body in {**bodies, "seen": "NAMES = []"}.items():
        (folder / f"{name}.py").write_text(body)
    import_from_the_end([folder / f"{name}.py" for name in bodies], tmp_path)
    assert sys.modules["shared_imports_here.seen"].NAMES == ["c", "a"]
    assert "shared_imports_here.test_b" not in sys.modules
    for name in [name for name in sys.modules if name.startswith("shared_imports_here")]:
        monkeypatch.delitem(sys.modules, name)
