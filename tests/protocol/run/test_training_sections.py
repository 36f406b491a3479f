"""How peers train and how commits move the anchor, as run.toml says it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.run.training_sections import InnerSection, OuterSection


def test_the_matrices_have_the_rate_of_all_others_where_none_is_said() -> None:
    assert InnerSection(learning_rate=0.01, batch_tokens=64, optimizer="muon").matrix_rate == 0.01
    own = InnerSection(learning_rate=0.01, batch_tokens=64, optimizer="muon", matrix_learning_rate=0.02)
    assert own.matrix_rate == 0.02


def test_keys_of_muon_without_muon_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"matrix_momentum 0\.9 belongs to optimizer"):
        InnerSection(learning_rate=0.01, batch_tokens=64, matrix_momentum=0.9)


def test_later_keys_are_written_only_where_they_are_used() -> None:
    assert "momentum_from_steps" not in OuterSection().model_dump()
    assert OuterSection(momentum_from_steps=8).model_dump()["momentum_from_steps"] == 8


def test_a_momentum_is_refused_where_the_outer_step_takes_none_with_the_kinds_that_do() -> None:
    with pytest.raises(ValidationError, match=r'momentum 0\.5 with kind = "mean": expected 0, or kind = "nesterov"'):
        OuterSection(momentum=0.5)
    assert OuterSection(kind="nesterov", momentum=0.5).momentum == 0.5


def test_an_outer_step_that_nobody_knows_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"Input should be 'mean'.*'nesterov'"):
        OuterSection(kind="adam")
