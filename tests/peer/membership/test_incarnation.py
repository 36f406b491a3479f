from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from peer.membership.incarnation import remember_unit, take_incarnation
from protocol.errors import StorageError
from protocol.ids import UnitName

TRUNK, EXPERT = UnitName("trunk"), UnitName("expert-1")


def _held(folder: Path) -> int:
    number = take_incarnation(folder)
    for unit in (TRUNK, EXPERT):
        remember_unit(folder, unit)
    return number


def test_a_disk_keeps_its_number_and_a_new_one_has_another(tmp_path: Path) -> None:
    number = _held(tmp_path / "one")
    assert _held(tmp_path / "one") == number
    assert take_incarnation(tmp_path / "two") != number


@pytest.mark.parametrize("lost", [TRUNK, EXPERT])
def test_a_disk_that_lost_the_folder_of_any_unit_has_another_number_from_then_on(
    tmp_path: Path, lost: UnitName
) -> None:
    """Its votes there are not known any more."""
    number = _held(tmp_path)
    shutil.rmtree(tmp_path / lost)
    other = _held(tmp_path)
    assert other != number
    assert _held(tmp_path) == other


def test_a_unit_that_is_taken_up_later_changes_nothing(tmp_path: Path) -> None:
    number = take_incarnation(tmp_path)
    remember_unit(tmp_path, TRUNK)
    assert take_incarnation(tmp_path) == number
    remember_unit(tmp_path, EXPERT)
    assert take_incarnation(tmp_path) == number


def test_a_run_of_one_unit_keeps_the_number_that_it_had_in_that_units_folder_alone(tmp_path: Path) -> None:
    unit = UnitName("fragment-0")
    (tmp_path / unit).mkdir()
    (tmp_path / unit / "incarnation").write_text("41")
    assert take_incarnation(tmp_path) == 41
    remember_unit(tmp_path, unit)
    shutil.rmtree(tmp_path / unit)
    assert take_incarnation(tmp_path) != 41


def test_a_crash_between_the_new_number_and_its_units_draws_once_more(tmp_path: Path) -> None:
    number = _held(tmp_path)
    (tmp_path / "incarnation").write_text(str(number + 1))
    drawn = _held(tmp_path)
    assert drawn not in (number, number + 1)
    assert _held(tmp_path) == drawn


def test_a_damaged_disk_number_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "incarnation").write_text("x")
    with pytest.raises(StorageError, match="remove it"):
        take_incarnation(tmp_path)
