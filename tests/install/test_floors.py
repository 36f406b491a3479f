from __future__ import annotations

import tomllib

import pytest

from tests.install.extras import TRIALS
from tests.install.floors import EXTRAS, TESTS, TRIED, TRIED_EXTRAS, declared_floors, not_at_its_floor, pins_of, untried
from tests.install.running import ROOT, Failed

DECLARED = {"numpy": "1.26", "tomli-w": "1.0"}


def test_every_declared_floor_was_installed_and_tried() -> None:
    """`python -m tests.install floors` writes floors.txt when the command line and its tests pass with the lowest releases."""
    declared = declared_floors((ROOT / "pyproject.toml").read_text(encoding="utf8"))
    assert list(untried(declared, pins_of(TRIED.read_text(encoding="ascii")))) == []
    assert {"torch", "structlog", "typer", "hivemind", "datasets"} <= declared.keys()


def test_bound_that_was_changed_added_or_removed_is_told() -> None:
    tried = {"numpy": "1.25", "rich": "13.9"}
    assert list(untried(DECLARED, tried)) == [
        "numpy>=1.26 was never tried; 1.25 was",
        "rich is no dependency any more, and floors.txt has it",
        "tomli-w>=1.0 was never tried",
    ]
    assert list(untried(DECLARED, DECLARED)) == []


def test_dependency_without_a_lower_bound_is_refused() -> None:
    with pytest.raises(Failed, match="'rich<14' has no lower bound"):
        declared_floors(
            '[project]\ndependencies = ["numpy>=1.26,<2.4", "rich<14"]\noptional-dependencies = {hf = []}\n'
        )


def test_bound_is_read_with_an_extra_and_an_upper_one() -> None:
    text = '[project]\ndependencies = ["a[trio]>=0.17", "b>=1.26,<2.4"]\noptional-dependencies = {hf = ["c>=5", "a>=0.17"]}\n'
    assert declared_floors(text) == {"a": "0.17", "b": "1.26", "c": "5"}


def test_two_bounds_of_one_package_are_refused() -> None:
    text = '[project]\ndependencies = ["a>=0.17"]\noptional-dependencies = {hf = ["a>=0.18"]}\n'
    with pytest.raises(Failed, match=r"a has the lower bounds 0\.17 and 0\.18"):
        declared_floors(text)


def test_bounds_of_the_tools_of_make_check_are_the_pinned_releases() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["optional-dependencies"][
        "dev"
    ]
    bounds = [line.partition(";")[0].replace(">=", "==") for line in tools]
    assert (
        sorted(set(bounds) - set((ROOT / "constraints.txt").read_text(encoding="utf8").replace(";", " ").split())) == []
    )


def test_bound_below_what_others_ask_for_is_told() -> None:
    assert list(not_at_its_floor(DECLARED, {"numpy": "1.26.0", "tomli-w": "1.0.0"}, ())) == []
    pins = {"numpy": "2.0.0", "tomli-w": "1.0"}
    assert list(not_at_its_floor(DECLARED, pins, ())) == [
        "numpy>=1.26 resolves to 2.0.0: others ask for more, so declare that"
    ]
    assert list(not_at_its_floor(DECLARED, pins, {"numpy"})) == []


def test_pins_are_read_without_remarks_and_conditions() -> None:
    text = "# made by uv\nnumpy==1.26.0\n\nuvloop==0.20.0 ; sys_platform != 'win32'  # fast\n-e .\n"
    assert pins_of(text) == {"numpy": "1.26.0", "uvloop": "0.20.0"}


def test_every_test_that_is_tried_is_there() -> None:
    assert [path for path in TESTS if not (ROOT / path).exists()] == []


def test_only_extras_that_were_installed_are_put_to_work() -> None:
    assert set(TRIED_EXTRAS) == TRIALS.keys() & set(EXTRAS)
