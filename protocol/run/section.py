"""What all sections of run.toml are: frozen, strict, without keys that nobody knows."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1 << 53)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """A section, or the whole file. The docstring below a key is its description in coordinator/SETTINGS.md."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def used(self, values: dict[str, object], first_keys: frozenset[str]) -> dict[str, object]:
        """What came in later than `first_keys` is written only where it is used: the ids of runs before it stay what they are."""
        fields = type(self).model_fields
        return {n: v for n, v in values.items() if n in first_keys or v != fields[n].default}
