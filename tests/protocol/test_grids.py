from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.grids import GRIDS, MOST_G_PER_KWH, carbon_kg, grid_g_per_kwh


def test_a_country_is_found_by_its_letters_however_they_are_written() -> None:
    assert grid_g_per_kwh("DE") == grid_g_per_kwh(" de ") == 344.0
    assert grid_g_per_kwh("world") == 473.0


def test_grams_stand_for_a_grid_of_ones_own() -> None:
    assert grid_g_per_kwh("12.5") == 12.5
    assert grid_g_per_kwh("0") == 0.0


@pytest.mark.parametrize("wrong", ["worl", "xx", "-1", "nan", "inf", "", "1e9"])
def test_a_grid_that_nobody_knows_is_one_line_that_says_what_would_work(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grid_g_per_kwh(wrong)
    assert "\n" not in str(caught.value)
    assert caught.value.expected


def test_the_nearest_names_are_told() -> None:
    with pytest.raises(ConfigError, match="such as world"):
        grid_g_per_kwh("worl")


def test_all_of_the_table_is_in_range() -> None:
    assert all(0 < grams < MOST_G_PER_KWH for grams in GRIDS.values())


def test_carbon_is_energy_times_the_grid() -> None:
    assert carbon_kg(10.0, 344.0) == pytest.approx(3.44)
