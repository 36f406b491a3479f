"""Small enough to read: functions, files, and names that say what is inside."""

from __future__ import annotations

from pathlib import PurePosixPath

from tests.architecture.source import modules

FUNCTION_P90_LINES = 40
FUNCTION_CAP_LINES = 80
FILE_CAP_LINES = 500
EMPTY_NAMES = ("utils", "util", "helpers", "misc", "common", "manager")


def test_nine_in_ten_functions_fit_on_a_screen() -> None:
    lengths = sorted(length for module in modules() for _, length in module.functions())
    assert lengths[int(len(lengths) * 0.9)] <= FUNCTION_P90_LINES


def test_no_function_is_longer_than_the_cap() -> None:
    found = [f"{name} {length}" for m in modules() for name, length in m.functions() if length > FUNCTION_CAP_LINES]
    assert found == []


def test_no_file_is_longer_than_the_cap() -> None:
    found = [f"{m.path} {lines}" for m in modules() if (lines := len(m.text.splitlines())) > FILE_CAP_LINES]
    assert found == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    stems = [(m.path, PurePosixPath(m.path).stem) for m in modules()]
    assert [path for path, stem in stems if any(word in stem.split("_") for word in EMPTY_NAMES)] == []


def test_no_work_is_left_for_later_in_comments() -> None:
    marks = tuple(a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X")))
    found = [m.path for m in modules() + modules("tests") if any(mark in m.text for mark in marks)]
    assert found == []
