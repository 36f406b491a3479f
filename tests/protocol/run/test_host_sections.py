"""The host's sections of run.toml."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import ValidationError

from protocol.identity.puzzle import MOST_BITS
from protocol.run.host_sections import (
    OPEN_GUARD,
    AdmissionSection,
    CheckpointSection,
    door_problem,
    gate_problem,
    has_loss_gate,
    with_open_door,
)
from protocol.run.round_section import RoundSection


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


@pytest.mark.parametrize(
    ("asked", "is_open", "mode", "shards", "expected"),
    [
        (None, True, "overlap", "data", True),
        (None, False, "overlap", "data", False),
        (True, False, "blocking", "data", True),
        (False, True, "overlap", "data", False),
        (None, True, "streaming", "data", False),
        (None, False, "overlap", "expert", False),
    ],
)
def test_an_open_run_of_one_unit_has_a_loss_gate_if_its_file_says_nothing_else(
    asked: bool | None, is_open: bool, mode: Literal["overlap", "blocking", "streaming"], shards: str, expected: bool
) -> None:
    section = RoundSection(target_tokens=1, mode=mode, loss_gate=asked)
    assert has_loss_gate(section, AdmissionSection(open=is_open), shards) is expected
    assert gate_problem(section, shards) == ""


@pytest.mark.parametrize(("mode", "shards"), [("streaming", "data"), ("overlap", "expert"), ("overlap", "pipeline")])
def test_a_gate_for_a_model_of_several_parts_is_refused(
    mode: Literal["overlap", "blocking", "streaming"], shards: str
) -> None:
    problem = gate_problem(RoundSection(target_tokens=1, mode=mode, loss_gate=True), shards)
    assert "they cannot go back together" in problem
    assert 'expected shards = "data"' in problem
