"""One source of a mixture."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.run.source_section import SourceSection


def test_keys_that_are_not_used_are_not_written() -> None:
    assert SourceSection(kind="text", glob="*.txt").model_dump() == {"kind": "text", "weight": 1.0, "glob": "*.txt"}


@pytest.mark.parametrize(
    "values", [{}, {"kind": "web"}, {"kind": "text", "weight": -1.0}, {"kind": "text", "name": "\n"}]
)
def test_a_source_needs_a_known_kind_a_weight_above_zero_and_a_name_that_can_be_shown(
    values: dict[str, object],
) -> None:
    with pytest.raises(ValidationError):
        SourceSection.model_validate(values)
