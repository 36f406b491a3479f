"""The host's sections of run.toml."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.run.host_sections import AdmissionSection, CheckpointSection


def test_left_out_the_sections_have_their_defaults() -> None:
    assert AdmissionSection().credential_days == 30
    assert (CheckpointSection().every_rounds, CheckpointSection().keep, CheckpointSection().keep_every) == (5, 3, 10)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError):
        AdmissionSection(credential_days=0)
    with pytest.raises(ValidationError):
        CheckpointSection(keep=0)
