"""The rules number: a version and a cap factor in one, with the numbers of older releases as they were."""

from __future__ import annotations

import pytest

from protocol.rounds.lineage.rule_numbers import (
    CAP_FACTOR,
    NO_CAP,
    VERSION_BITS,
    cap_factor_of,
    is_open,
    rules_with,
    version_of,
    with_version,
)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("factor", [1, CAP_FACTOR, 1000, NO_CAP])
def test_both_parts_come_back_out_of_a_number_that_fits_its_field(version: int, factor: int) -> None:
    rules = rules_with(version, factor)
    assert (version_of(rules), cap_factor_of(rules)) == (version, factor)
    assert rules < 1 << 32


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_usual_cap_makes_the_numbers_that_older_releases_write(version: int) -> None:
    assert rules_with(version, CAP_FACTOR) == version
    assert cap_factor_of(version) == CAP_FACTOR


def test_a_version_only_rises_and_the_cap_stays() -> None:
    assert with_version(rules_with(1, 7), 2) == rules_with(2, 7)
    assert with_version(rules_with(2, 7), 1) == rules_with(2, 7)


@pytest.mark.parametrize("cap_factor", [1, CAP_FACTOR, NO_CAP])
def test_an_open_run_has_one_bit_more_which_every_later_record_keeps(cap_factor: int) -> None:
    plain, opened = rules_with(1, cap_factor), rules_with(1, cap_factor, is_open_run=True)
    assert (is_open(plain), is_open(opened)) == (False, True)
    assert version_of(opened) == version_of(plain) == 1
    assert cap_factor_of(opened) == cap_factor_of(plain) == cap_factor
    later = with_version(opened, 2)
    assert (version_of(later), is_open(later), cap_factor_of(later)) == (2, True, cap_factor)


def test_a_release_that_knows_no_standing_takes_an_open_run_for_one_of_a_later_version() -> None:
    as_it_reads = rules_with(1, CAP_FACTOR, is_open_run=True) & ((1 << VERSION_BITS) - 1)
    assert as_it_reads not in (0, 1, 2)
