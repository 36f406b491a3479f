from __future__ import annotations

import re
from dataclasses import replace

import pytest

from protocol.rounds.schedule.target import RoundTarget
from protocol.run.round_size_rules import PacingNumbers, contradiction

RAMP = PacingNumbers(RoundTarget(100_000, 64, ramp_share=0.02), 1_000_000, batch_tokens=64, min_members=2)
AUTO = replace(RAMP, target=RoundTarget(100_000, 64, exchange_share=0.95))
ALIKE = replace(RAMP, target=RoundTarget(100_000))


@pytest.mark.parametrize("numbers", [RAMP, AUTO, ALIKE, replace(ALIKE, momentum=0.9)])
def test_a_ramp_measured_rounds_or_rounds_that_are_all_alike_contradict_nothing_by_themselves(
    numbers: PacingNumbers,
) -> None:
    assert contradiction(numbers) == ""


@pytest.mark.parametrize("numbers", [RAMP, AUTO])
def test_a_largest_round_that_is_no_larger_than_the_smallest_is_refused(numbers: PacingNumbers) -> None:
    for most_tokens in (100, 128):
        small = replace(numbers, target=replace(numbers.target, most_tokens=most_tokens))
        assert contradiction(small) == (
            f"round.target_tokens {most_tokens}: no round could grow: expected more than 128, which the first local steps of 2 "
            "members take"
        )
    assert contradiction(replace(numbers, target=replace(numbers.target, most_tokens=129))) == ""


@pytest.mark.parametrize("total_tokens", [20_000, 1_000_000, 123_456_789, 1 << 50])
@pytest.mark.parametrize("share", [1e-3, 1e-9, 1e-300])
def test_a_ramp_in_which_no_round_would_grow_is_refused_with_the_share_from_which_it_does(
    total_tokens: int, share: float
) -> None:
    flat = replace(RAMP, total_tokens=total_tokens, target=replace(RAMP.target, ramp_share=share))
    if int(total_tokens * share) > 128:
        assert contradiction(flat) == ""
        return
    found = re.search(r"no round would grow.*a ramp_share of at least (\S+)$", contradiction(flat))
    assert found is not None
    assert contradiction(replace(flat, target=replace(flat.target, ramp_share=float(found[1])))) == ""


def test_a_run_that_is_too_short_for_any_ramp_is_told_how_long_it_has_to_be() -> None:
    short = replace(RAMP, total_tokens=120)
    found = re.search(r"run\.total_tokens of at least (\d+)$", contradiction(short))
    assert found is not None
    assert contradiction(replace(short, total_tokens=int(found[1]))) == ""


@pytest.mark.parametrize(
    ("numbers", "asked"), [(RAMP, "round.ramp_share 0.02"), (AUTO, 'round.local_steps = "auto"')], ids=["ramp", "auto"]
)
def test_momentum_in_short_first_rounds_is_refused_with_what_makes_it_work(numbers: PacingNumbers, asked: str) -> None:
    long = replace(numbers, momentum=0.9)
    assert f"outer.momentum 0.9 with {asked}" in contradiction(long)
    assert "expected momentum_from_steps = 64 beside it, or kind" in contradiction(long)
    assert contradiction(replace(long, momentum_from_steps=64)) == ""
    short = replace(long, target=replace(long.target, most_tokens=4096))
    assert "momentum_from_steps = 64 beside it and round.target_tokens of at least 8192" in contradiction(short)
    works = replace(short, momentum_from_steps=64, target=replace(short.target, most_tokens=8192))
    assert contradiction(works) == ""


@pytest.mark.parametrize("numbers", [RAMP, AUTO, ALIKE], ids=["ramp", "auto", "alike"])
def test_momentum_that_no_round_would_be_long_enough_for_is_refused(numbers: PacingNumbers) -> None:
    never = replace(numbers, momentum=0.9, momentum_from_steps=782)
    assert "with 2 members the longest rounds are of 781 local steps" in contradiction(never)
    assert "expected at most 781, or round.target_tokens of at least 100096" in contradiction(never)
    assert contradiction(replace(never, momentum_from_steps=781)) == ""
    assert contradiction(replace(never, target=replace(never.target, most_tokens=100_096))) == ""


def test_where_a_round_is_less_than_a_step_of_everybody_no_number_of_steps_is_named() -> None:
    tiny = replace(ALIKE, target=RoundTarget(100), momentum=0.9, momentum_from_steps=1)
    assert "so that there would never be momentum: expected round.target_tokens of at least 128" in contradiction(tiny)


def test_steps_from_which_there_is_momentum_belong_to_momentum() -> None:
    assert "momentum_from_steps 64 belongs to a momentum" in contradiction(replace(RAMP, momentum_from_steps=64))
