from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.run.streaming_rules import StreamingNumbers, contradiction

NUMBERS = StreamingNumbers(
    num_layers=4,
    num_fragments=3,
    delay_steps=5,
    target_tokens=100 * 2 * 64,
    total_tokens=1_000_000,
    batch_tokens=64,
    min_members=2,
)


def test_rounds_of_the_units_are_spread_over_the_steps_of_one_round() -> None:
    assert NUMBERS.num_units == 4
    assert NUMBERS.steps_between == 25
    assert contradiction(NUMBERS) == ""


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_fragments": 5}, "round.fragments 5: expected at most the 4 of model.num_layers"),
        (
            {"delay_steps": 25},
            "25 local steps apart: expected a delay of at most 24, or round.target_tokens of at least 13312",
        ),
        ({"target_tokens": 512}, "are 1 local steps apart: expected round.target_tokens of at least 3072"),
        (
            {"target_tokens": 100, "delay_steps": 0},
            "round.target_tokens 100: with 2 peers the rounds of 4 units are 0 local steps apart: expected at least 512",
        ),
        ({"total_tokens": 12_801}, "run.total_tokens 12801: expected at least twice round.target_tokens, 25600"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused_with_the_one_that_would_work(
    changes: dict[str, int], found: str
) -> None:
    assert found in contradiction(replace(NUMBERS, **changes))


def test_the_number_that_would_work_works() -> None:
    assert contradiction(replace(NUMBERS, delay_steps=25, target_tokens=13_312)) == ""
    assert contradiction(replace(NUMBERS, delay_steps=24)) == ""


def test_a_target_that_would_make_the_run_too_short_is_named_with_the_length_that_it_takes() -> None:
    short = replace(NUMBERS, delay_steps=25, total_tokens=26_000)
    assert contradiction(short).endswith(
        "or round.target_tokens of at least 13312 and run.total_tokens of at least 26624"
    )
    assert contradiction(replace(short, target_tokens=13_312)) != ""
    assert contradiction(replace(short, target_tokens=13_312, total_tokens=26_624)) == ""
    tiny = replace(NUMBERS, delay_steps=0, target_tokens=100, total_tokens=1000)
    assert contradiction(tiny).endswith("expected at least 512 and run.total_tokens of at least 1024")
    assert contradiction(replace(tiny, target_tokens=512, total_tokens=1024)) == ""
