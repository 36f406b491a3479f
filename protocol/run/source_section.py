"""The sections [[data.source]] of run.toml: the sources of a mixture."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from protocol.run.section import Section, Shaped

SourceKind = Literal["python-stdlib", "text", "jsonl", "parquet", "hf", "domains"]
RowFormat = Literal["text", "chat", "completion"]

MAX_SOURCES: Final = 32
"""Most sources of a mixture."""

SplitName = Annotated[
    str,
    Shaped(
        r"\w[\w.-]*(\[(-?\d{1,12}%?)?:(-?\d{1,12}%?)?\])?",
        "the name of a split, such as train, or a part of one, such as train[:1%] or train[1000:2000]",
    ),
    Field(max_length=256),
]
"""A split of a data set, or some of its rows, in the words of Hugging Face."""

_FIRST_KEYS: Final = frozenset(["kind", "weight"])


class SourceSection(Section):
    """One source of a mixture. The keys of [data] that are not here hold for all sources."""

    kind: SourceKind
    """Kind of source, as `source` of [data]."""

    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Share of the training sequences that are read from this source, relative to the weights of the others."""

    name: Annotated[str, Shaped(r"[\w .-]{0,32}", "up to 32 letters, digits, spaces, dots, dashes and underscores")] = (
        ""
    )
    """Name of the source in the status and on the page. Its number if not given."""

    glob: str = ""
    """Files, as `glob` of [data]."""

    domains: Annotated[str, Field(max_length=256)] = ""
    """As `domains` of [data]."""

    dataset: Annotated[str, Field(max_length=1024)] = ""
    """As `dataset` of [data]."""

    configuration: Annotated[str, Field(max_length=256)] = ""
    """As `configuration` of [data]."""

    split: SplitName = "train"
    """As `split` of [data]."""

    field: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    """As `field` of [data]."""

    format: RowFormat = "text"
    """As `format` of [data]. A mixture may have sources of several formats."""

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), _FIRST_KEYS)
