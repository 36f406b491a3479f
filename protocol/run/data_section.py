"""The section [data] of run.toml: the source of the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.run.section import Section, Shaped
from protocol.run.source_section import MAX_SOURCES, RowFormat, SourceSection, SplitName

_FIRST_DATA_KEYS: Final = frozenset(["source", "glob", "shard_bytes", "heldout_every"])
"""Keys of the data section that every manifest has."""

MESSAGES: Final = "messages"
"""The usual name of the field that holds a conversation."""

_SOURCES_WITH_FIELDS: Final = frozenset(["jsonl", "parquet", "hf"])

_SOURCES_WITH_GLOBS: Final = frozenset(["text", "jsonl", "parquet"])

DOMAIN_NAMES: Final = ("python", "english", "c++", "stubs")
"""Kinds of text that every install has (averaging/data/sources/domains.py)."""

HUB_PREFIX: Final = "hf://"
"""Prefix of the name of a data set on the Hugging Face Hub. Only names with it are fetched."""

_HUB_NAME: Final = re.compile(HUB_PREFIX + r"[\w.-]+/[\w.-]+")


_NO_SOURCE: Final[Mapping[str, object]] = {
    "glob": "",
    "domains": "",
    "dataset": "",
    "configuration": "",
    "split": "train",
    "field": "text",
    "format": "text",
}
"""The keys of a source, as they are where none is given."""


class DataSection(Section):
    """The text that the run trains on. The host reads it and gives peers hashed shards."""

    source: Literal["python-stdlib", "text", "jsonl", "parquet", "hf", "domains", "mixture"] = "python-stdlib"
    """Kind of source: Python's own library, text files, JSON lines, parquet files, a Hugging Face data set, or texts that every
    install has. A mixture has sections [[data.source]] instead.
    """

    glob: str = ""
    """Files of the sources "text", "jsonl" and "parquet", as "corpus/*.txt", relative to run.toml."""

    domains: Annotated[str, Field(max_length=256)] = ""
    """Texts of the source "domains", separated by commas: python, english, c++, stubs."""

    dataset: Annotated[str, Field(max_length=1024)] = ""
    """Data set of the source "hf": a folder that Hugging Face datasets saved to disk, relative to run.toml, or "hf://OWNER/NAME".
    """

    configuration: Annotated[str, Field(max_length=256)] = ""
    """Configuration of a data set on the Hub, where it has several."""

    split: SplitName = "train"
    """Split of the data set that is read, or some of its rows: train[:1%], train[1000:2000]."""

    shard_bytes: Annotated[int, Field(ge=4096, le=1 << 30)] = 1 << 20
    """Bytes of a shard. Smaller ones let a peer begin sooner; larger ones are fewer requests."""

    heldout_every: Annotated[int, Field(ge=2, le=1000)] = 20
    """One file in this many is kept from training to measure the loss; of sources with rows, one row."""

    field: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    """Field of a JSON line, or column of a table, that holds the text; with format = "chat", the messages, which are then in
    "messages" by default.
    """

    format: RowFormat = "text"
    """Contents of a row: "text"; "chat", a list of messages with role and content; "completion", the columns prompt and completion. Of
    a chat only the assistant's answers count in the loss, and of a completion only the completion.
    """

    chat_template: Annotated[str, Field(max_length=1024)] = ""
    """Path of a file with the template of chats, in Jinja, relative to run.toml. That of the tokenizer if not given."""

    isolate: bool = False
    """Whether documents that are packed together do not see each other: attention and positions begin anew with each. For chats and
    short texts.
    """

    tokenizer: Annotated[
        str, Shaped(r"bytes|bpe|.+\.json", '"bytes", "bpe" or the path of a tokenizer.json'), Field(max_length=1024)
    ] = "bytes"
    """Kind of tokens: "bytes"; "bpe", which is trained on the text to model.vocab_size tokens; or the path of a tokenizer.json."""

    prose: str = ""
    """Files of a second text to measure the loss on, as "prose/*.txt". They are never trained on, even if `glob` matches them, too.
    The source "python-stdlib" has one of its own.
    """

    end_token: Annotated[str, Field(max_length=256)] = ""
    """Token of a tokenizer.json that ends a document, if it has none of the usual names."""

    sources: Annotated[tuple[SourceSection, ...], Field(max_length=MAX_SOURCES, strict=False)] = ()
    """The sections [[data.source]] of a mixture, each with a kind and a weight."""

    @model_validator(mode="before")
    @classmethod
    def _take_sources(cls, values: object) -> object:
        """TOML has the sections [[data.source]] in place of the key `source`."""
        if isinstance(values, dict) and isinstance(values.get("source"), list):
            return {**values, "source": "mixture", "sources": values["source"]}
        return values

    @model_validator(mode="after")
    def _check_sources(self) -> DataSection:
        if (self.source == "mixture") != bool(self.sources):
            raise ValueError('a mixture has sections [[data.source]], each with kind and weight, and no key "source"')
        for number, part in enumerate(self.parts, 1):
            try:
                part.check_keys()
            except ValueError as error:
                raise ValueError(f"source {number}: {error}" if self.sources else str(error)) from error
        if self.sources and self._own_source() != _NO_SOURCE:
            raise ValueError("glob, dataset, format and other keys of a source stand in the sections [[data.source]]")
        if self.chat_template and not self.has_chats:
            raise ValueError(f'chat_template = "{self.chat_template}" belongs to format = "chat"')
        if self.end_token and self.tokenizer in ("bytes", "bpe"):
            raise ValueError(f'end_token = "{self.end_token}" belongs to a tokenizer.json, not to "{self.tokenizer}"')
        return self

    @property
    def parts(self) -> tuple[DataSection, ...]:
        """Each source as a section of its own; without a mixture, this one."""
        if not self.sources:
            return (self,)
        return tuple(self.model_copy(update=_keys_of(source)) for source in self.sources)

    @property
    def has_chats(self) -> bool:
        """Whether a source is chats, so that the run has a chat template."""
        return any(part.format == "chat" for part in self.parts)

    @property
    def weights(self) -> tuple[float, ...]:
        """The sources' weights; one without a mixture."""
        return tuple(source.weight for source in self.sources) or (1.0,)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of a mixture's sources; empty without one."""
        return tuple(source.name or f"source {number}" for number, source in enumerate(self.sources, 1))

    def _own_source(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _NO_SOURCE}

    def check_keys(self) -> None:
        """Raises ValueError if the keys of this one source do not fit together."""
        if (self.source in _SOURCES_WITH_GLOBS) != bool(self.glob):
            raise ValueError(self._glob_problem())
        self._check_dataset()
        self._check_domains()
        if self.field != "text" and self.source not in _SOURCES_WITH_FIELDS:
            raise ValueError(f'field = "{self.field}" does not belong to source = "{self.source}"')
        if self.format != "text" and self.source not in _SOURCES_WITH_FIELDS:
            raise ValueError(f'format = "{self.format}" belongs to the sources "jsonl", "parquet" and "hf"')
        if self.format == "completion" and self.field != "text":
            raise ValueError(f'field = "{self.field}": expected none, for completions are in "prompt" and "completion"')

    @property
    def counts_some(self) -> bool:
        """Whether only some tokens count in a loss."""
        return any(part.format != "text" for part in self.parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields or columns that are read of each row."""
        if self.format == "completion":
            return ("prompt", "completion")
        return (MESSAGES if self.format == "chat" and self.field == "text" else self.field,)

    def _glob_problem(self) -> str:
        if self.glob:
            return f'a glob belongs to the sources "text", "jsonl" and "parquet", and not to "{self.source}"'
        ending = "txt" if self.source == "text" else self.source
        return f'source = "{self.source}" needs glob = "corpus/**/*.{ending}" below [data]'

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Names of the texts of the source "domains"."""
        return tuple(name.strip() for name in self.domains.split(",")) if self.domains else ()

    def _check_domains(self) -> None:
        if (self.source == "domains") != bool(self.domains):
            raise ValueError('domains belong to the source "domains", and to no other; such as "python, english"')
        names = self.domain_names
        if set(names) - set(DOMAIN_NAMES) or len(set(names)) != len(names):
            raise ValueError(f'domains = "{self.domains}": expected some of {", ".join(DOMAIN_NAMES)}, each once')

    def _check_dataset(self) -> None:
        if (self.source == "hf") != bool(self.dataset):
            raise ValueError(
                'a dataset belongs to the source "hf", and to no other: a folder such as "corpus", or "hf://OWNER/NAME"'
            )
        is_on_hub = self.dataset.startswith(HUB_PREFIX)
        if is_on_hub and not _HUB_NAME.fullmatch(self.dataset):
            raise ValueError(f'dataset = "{self.dataset}" is no name on the Hub, which is "hf://OWNER/NAME"')
        if self.configuration and not is_on_hub:
            raise ValueError(
                f'configuration = "{self.configuration}" belongs to a dataset on the Hub, "hf://OWNER/NAME"'
            )
        if self.split != "train" and self.source != "hf":
            raise ValueError(f'split = "{self.split}" does not belong to source = "{self.source}"')

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        values = self.used(handler(self), _FIRST_DATA_KEYS)
        return {name: value for name, value in values.items() if name != "sources" or self.sources}


def _keys_of(source: SourceSection) -> dict[str, object]:
    """The keys of a section that has this source alone."""
    values = {name: getattr(source, name) for name in _NO_SOURCE}
    return {**values, "source": source.kind, "sources": ()}


def data_contradiction(data: DataSection, shards: str) -> str:
    """Why a run of this kind cannot have such data, with what would; "" if it can."""
    if data.isolate and shards == "pipeline":
        return 'data.isolate = true with run.shards = "pipeline": expected false, for stages in the middle read no text'
    if data.sources and shards == "expert":
        return (
            'sections [[data.source]] with run.shards = "expert": expected one source, of which experts get their parts'
        )
    return ""
