from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from protocol.run.validation_text import explained


class Numbers(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(ge=1)
    even: int = 2

    @field_validator("even")
    @classmethod
    def _check_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("expected an even number")
        return value


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"count": 1, "cuont": 2}, "a file: cuont is not a known key"),
        ({"cuont": 2}, "a file: cuont is not a known key"),
        ({}, "a file: count is missing"),
        ({"count": 0}, "a file: count is 0"),
        ({"count": 1, "even": 3}, "a file: even: expected an even number"),
    ],
)
def test_the_first_thing_that_is_wrong_is_named_with_its_key(values: dict[str, int], found: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Numbers.model_validate(values)
    assert explained("a file", caught.value)[0] == found
