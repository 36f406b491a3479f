"""The rules number: a version and a cap factor in one, with the numbers of older releases as they were."""

from __future__ import annotations

import pytest

from protocol.rounds.lineage.rule_numbers import (
    CAP_FACTOR,
    NO_CAP,
    OPEN_RUN,
    VERSION_BITS,
    asks_told_votes,
    bounds_strangers,
    cap_factor_of,
    is_open,
    may_follow,
    rules_after,
    rules_with,
    takes_turns,
    version_of,
)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("factor", [1, CAP_FACTOR, 1000, NO_CAP])
def test_both_parts_come_back_out_of_a_number_that_fits_its_field(version: int, factor: int) -> None:
    rules = rules_with(version, factor)
    assert (version_of(rules), cap_factor_of(rules)) == (version, factor)
    assert rules < 1 << 32


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_usual_cap_makes_the_numbers_that_older_releases_write(version: int) -> None:
    assert rules_with(version, CAP_FACTOR) == version
    assert cap_factor_of(version) == CAP_FACTOR


@pytest.mark.parametrize(
    ("parent", "in_turns", "version"),
    [(0, False, 3), (1, False, 3), (3, False, 3), (1, True, 4), (2, False, 4), (3, True, 4), (4, False, 4)],
)
def test_a_new_record_has_the_newest_rules_with_turns_if_they_were_taken_and_the_cap_stays(
    parent: int, in_turns: bool, version: int
) -> None:
    assert rules_after(rules_with(parent, 7), in_turns=in_turns) == rules_with(version, 7)
    assert may_follow(version, parent)
    assert asks_told_votes(rules_with(version, 7))


@pytest.mark.parametrize("parent", range(5))
def test_no_record_leaves_out_a_check_that_its_parent_had(parent: int) -> None:
    checks = {0: "", 1: "signed", 2: "signed turns", 3: "signed told", 4: "signed turns told"}
    fine = [version for version in checks if set(checks[parent].split()) <= set(checks[version].split())]
    assert [version for version in checks if may_follow(version, parent)] == fine
    assert takes_turns(parent) == ("turns" in checks[parent])
    assert asks_told_votes(parent) == ("told" in checks[parent])


@pytest.mark.parametrize("cap_factor", [1, CAP_FACTOR, NO_CAP])
def test_an_open_run_has_two_bits_more_which_every_later_record_keeps(cap_factor: int) -> None:
    plain, opened = rules_with(1, cap_factor), rules_with(1, cap_factor, is_open_run=True)
    assert (is_open(plain), is_open(opened)) == (False, True)
    assert (bounds_strangers(plain), bounds_strangers(opened)) == (False, True)
    assert version_of(opened) == version_of(plain) == 1
    assert cap_factor_of(opened) == cap_factor_of(plain) == cap_factor
    later = rules_after(opened, in_turns=True)
    assert (version_of(later), is_open(later), cap_factor_of(later)) == (4, True, cap_factor)
    assert bounds_strangers(later)


def test_a_release_that_knows_no_standing_takes_an_open_run_for_one_of_a_later_version() -> None:
    as_it_reads = rules_with(1, CAP_FACTOR, is_open_run=True) & ((1 << VERSION_BITS) - 1)
    assert as_it_reads not in (0, 1, 2, 3, 4)
    assert as_it_reads - OPEN_RUN not in (0, 1, 2, 3, 4), "nor one that knows standings and bounds no stranger's weight"
