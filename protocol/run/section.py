"""The base of all sections of run.toml: frozen, strict, without unknown keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Count = Annotated[int, Field(ge=1, le=1 << 53)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


@dataclass(frozen=True, slots=True)
class OneOf:
    """`Annotated[str, OneOf(names)]`: a key that takes these words alone, as `Literal` does, with the names read from a table."""

    names: Iterable[str]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of a `Literal`, whose error lists the names."""
        return core_schema.literal_schema(list(self.names))


@dataclass(frozen=True, slots=True)
class Shaped:
    """`Annotated[str, Shaped(pattern, meaning)]`: a text that matches a pattern as a whole. Errors give its meaning, in words."""

    pattern: str
    meaning: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of a text, and then of its shape."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise PydanticCustomError("shape", "{meaning}", {"meaning": self.meaning})
        return text


class Section(BaseModel):
    """A section, or the whole file. The docstring below a key is its description in coordinator/SETTINGS.md."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def used(self, values: dict[str, object], first_keys: frozenset[str]) -> dict[str, object]:
        """The values of a manifest. Keys that are not among `first_keys` are written only where they are used, so the
        ids of older runs stay.
        """
        fields = type(self).model_fields
        return {n: v for n, v in values.items() if n in first_keys or v != fields[n].default}
