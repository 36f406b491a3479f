"""The host's sections of run.toml."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.identity.puzzle import MOST_BITS
from protocol.run.host_sections import (
    OPEN_GUARD,
    AdmissionSection,
    CheckpointSection,
    door_problem,
    with_open_door,
)


def test_left_out_the_sections_have_their_defaults() -> None:
    assert AdmissionSection().credential_days == 30
    assert (CheckpointSection().every_rounds, CheckpointSection().keep, CheckpointSection().keep_every) == (5, 3, 10)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError):
        AdmissionSection(credential_days=0)
    with pytest.raises(ValidationError):
        CheckpointSection(keep=0)


def test_a_section_that_says_nothing_of_the_door_is_written_as_in_older_runs() -> None:
    assert AdmissionSection().model_dump() == {"credential_days": 30}
    opened = AdmissionSection(open=True, puzzle_bits=12)
    assert opened.model_dump() == {"credential_days": 30, "open": True, "puzzle_bits": 12}


def test_numbers_of_the_door_without_an_open_door_are_refused() -> None:
    with pytest.raises(ValidationError, match="belongs to open = true"):
        AdmissionSection(puzzle_bits=12)
    with pytest.raises(ValidationError):
        AdmissionSection(open=True, puzzle_bits=MOST_BITS + 1)


@pytest.mark.parametrize(
    ("robust", "shards", "says"),
    [("off", "data", "robust off"), ("clip-agree", "expert", 'expected shards = "data"'), ("clip", "data", "")],
)
def test_an_open_run_needs_a_guard_of_its_means_and_whole_models(robust: str, shards: str, says: str) -> None:
    problem = door_problem(AdmissionSection(open=True), robust, shards)
    assert says in problem
    assert bool(says) == bool(problem)
    assert door_problem(AdmissionSection(), robust, shards) == ""


def test_the_flag_opens_the_door_and_sets_the_guard_unless_the_file_names_one() -> None:
    assert with_open_door({"run": {"name": "x"}}) == {
        "run": {"name": "x"},
        "admission": {"open": True},
        "round": {"robust": OPEN_GUARD},
    }
    given = with_open_door({"admission": {"credential_days": 3}, "round": {"robust": "clip", "codec": "int8"}})
    assert given["admission"] == {"credential_days": 3, "open": True}
    assert given["round"] == {"robust": "clip", "codec": "int8"}
