from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.streaming import StreamingNumbers, contradiction

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
