"""The model families that a run's `[model]` section may be of, by the names of their folders in averaging/models/.

A new family is a folder there and a name in FAMILIES here. Its `config.py` has `CONFIG`, the section's class. No torch is imported
for it, so the folder's other files are imported where the model is built or exported (averaging/models/family.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Final

from pydantic import (
    BaseModel,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import InitErrorDetails

from protocol.errors import LocalProtocolError
from protocol.tensors.model_config import ModelConfig

FAMILIES: Final = ("llama", "mistral", "olmo2", "qwen2", "qwen3")
"""All families that this release knows."""

DEFAULT_FAMILY: Final = "llama"
"""The family of a section that names none. Its name is never written, so ids of older runs stay."""

FAMILY_KEY: Final = "family"


@cache
def config_class(family: str) -> type[BaseModel]:
    """The class of a family's `[model]` section, a `ModelConfig`.

    Raises:
        LocalProtocolError: this release does not know the family.
    """
    if family not in FAMILIES:
        raise LocalProtocolError(f"model family {family!r}", f"one of {', '.join(FAMILIES)}", "install a newer release")
    found: type[BaseModel] = import_module(f"averaging.models.{family}.config").CONFIG
    return found


def parse_model(values: object) -> ModelConfig:
    """The numbers of a model as run.toml or a checkpoint's manifest has them.

    Raises:
        ValidationError: an unknown family, an unknown key, or a value that cannot work.
    """
    return _ADAPTER.validate_python(values)


def _parse(values: object) -> object:
    if isinstance(values, tuple(map(config_class, FAMILIES))):
        return values  # checked when it was made
    family = values.get(FAMILY_KEY, DEFAULT_FAMILY) if isinstance(values, Mapping) else DEFAULT_FAMILY
    if family not in FAMILIES:
        known = " or ".join(map(repr, FAMILIES))
        wrong = InitErrorDetails(type="literal_error", loc=(FAMILY_KEY,), input=family, ctx={"expected": known})
        raise ValidationError.from_exception_data("model", [wrong])
    return config_class(family).model_validate(values)


def _written(config: ModelConfig, info: SerializationInfo) -> dict[str, object]:
    return config.model_dump(mode=info.mode)


ModelSection = Annotated[ModelConfig, PlainValidator(_parse), PlainSerializer(_written)]
"""A model's numbers as a field of a pydantic model."""

_ADAPTER: Final[TypeAdapter[ModelConfig]] = TypeAdapter(ModelSection)
