"""The section [data] of run.toml: where the host takes the text from."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.run.section import Section

_FIRST_DATA_KEYS: Final = frozenset(["source", "glob", "shard_bytes", "heldout_every"])
"""Of the data section; written in every manifest."""

_SOURCES_WITH_FIELDS: Final = frozenset(["jsonl", "parquet", "hf"])

_SOURCES_WITH_GLOBS: Final = frozenset(["text", "jsonl", "parquet"])

DOMAIN_NAMES: Final = ("python", "english", "c++", "stubs")
"""Kinds of text that every install has (averaging/data/sources/domains.py)."""

HUB_PREFIX: Final = "hf://"
"""What begins the name of a data set on the Hugging Face Hub. Nothing is fetched for what does not begin so."""

_HUB_NAME: Final = re.compile(HUB_PREFIX + r"[\w.-]+/[\w.-]+")


class DataSection(Section):
    """Where the host takes the text from; peers get hashed shards.

    Attributes:
        glob: the files of the sources "text", "jsonl" and "parquet", relative to run.toml.
        domains: of the source "domains" the names of those that are read, by commas.
        dataset: of the source "hf" the folder that `save_to_disk` of Hugging Face datasets wrote, relative to run.toml, or
            "hf://OWNER/NAME" on the Hub.
        configuration: of a data set on the Hub that has several.
        split: of a data set that has splits, the one that is read.
        field: of a JSON line the field, of a parquet file or a data set the column that holds the text.
        tokenizer: "bytes"; "bpe", byte-level BPE of model.vocab_size tokens trained on the training text; or a tokenizer.json.
        prose: a second evaluation set, never trained on: text files by a pattern. Python's library has its help topics.
        end_token: what a tokenizer.json calls the end of a document, where that is not one of the usual names.
    """

    source: Literal["python-stdlib", "text", "jsonl", "parquet", "hf", "domains"] = "python-stdlib"
    glob: str = ""
    domains: Annotated[str, Field(max_length=256)] = ""
    dataset: Annotated[str, Field(max_length=1024)] = ""
    configuration: Annotated[str, Field(max_length=256)] = ""
    split: Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=256)] = "train"
    shard_bytes: Annotated[int, Field(ge=4096, le=1 << 30)] = 1 << 20
    heldout_every: Annotated[int, Field(ge=2, le=1000)] = 20
    field: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    tokenizer: Annotated[str, Field(pattern=r"^(bytes|bpe|.+\.json)$", max_length=1024)] = "bytes"
    prose: str = ""
    end_token: Annotated[str, Field(max_length=256)] = ""

    @model_validator(mode="after")
    def _check_keys(self) -> DataSection:
        if (self.source in _SOURCES_WITH_GLOBS) != bool(self.glob):
            raise ValueError(
                'a glob belongs to the sources "text", "jsonl" and "parquet", and to no other; such as "corpus/*.txt"'
            )
        self._check_dataset()
        self._check_domains()
        if self.field != "text" and self.source not in _SOURCES_WITH_FIELDS:
            raise ValueError(f'field = "{self.field}" does not belong to source = "{self.source}"')
        if self.end_token and self.tokenizer in ("bytes", "bpe"):
            raise ValueError(f'end_token = "{self.end_token}" belongs to a tokenizer.json, not to "{self.tokenizer}"')
        return self

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Of the source "domains"."""
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
        return self.used(handler(self), _FIRST_DATA_KEYS)
