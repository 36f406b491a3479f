"""A run's chat template as it travels: a hashed file of the data set, and a file of each checkpoint. With it, questions are put to the
model in the way of its training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Final, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from averaging.data.chat.chat_rows import Message
from averaging.data.chat.template_process import ChatTemplate, TemplateProcess
from protocol.errors import StorageError

_MOST_LETTERS: Final = 1 << 20
_Name = Annotated[str, Field(max_length=64)]
_Token = Annotated[str, Field(max_length=256)]


_Tokens = npt.NDArray[np.uint16 | np.uint32]


class MarkingTokenizer(Protocol):
    """A tokenizer that encodes special tokens in a text as such (averaging/data/tokenizer.py)."""

    def encode_marked(self, text: bytes, counted: Sequence[tuple[int, int]]) -> tuple[_Tokens, npt.NDArray[np.bool_]]:
        """The tokens of a text, and which of them count."""
        ...


class PackingTokenizer(MarkingTokenizer, Protocol):
    """One that also encodes special tokens in a text as plain text."""

    @property
    def end(self) -> int:
        """The end mark."""
        ...

    def encode(self, text: bytes) -> _Tokens:
        """The tokens of a text."""
        ...


class RunTemplate(BaseModel):
    """A template in Jinja.

    Attributes:
        source: its text.
        variables: what it may name beside the messages: the special tokens of the tokenizer's files.
        end: the token by which an answer ends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: Annotated[str, Field(max_length=_MOST_LETTERS)]
    variables: Annotated[dict[_Name, _Token], Field(max_length=64)] = {}
    end: Annotated[int, Field(ge=0, lt=1 << 20)]

    def file_bytes(self) -> bytes:
        """The file's bytes. The same template gives the same bytes."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def chat(self, place: str) -> ChatTemplate:
        """To render with. `place` is its name in errors."""
        return ChatTemplate(self.source, place, self.variables)


def open_template(data: bytes, place: str) -> RunTemplate:
    """A template from its file, whose hash was checked.

    Raises:
        StorageError: not a template.
    """
    try:
        return RunTemplate.model_validate_json(data)
    except ValidationError as error:
        found = f"{place} cannot be read as a chat template ({error.error_count()} problems)"
        raise StorageError(found, "what the run's host wrote", "fetch it again") from error


def run_template(template: ChatTemplate, tokenizer: PackingTokenizer) -> RunTemplate:
    """A template as it travels, with the token by which it ends an answer: the special one that it writes after it, such as
    <|im_end|>, or else the end mark. Blocks.

    Raises:
        ConfigError: the template fails.
        MachineError: no process can be started for it.
    """
    with TemplateProcess(template) as process:
        closing = process.closing().lstrip().encode()
    end = tokenizer.end
    if closing:
        special, plain = tokenizer.encode_marked(closing, ())[0], tokenizer.encode(closing)
        if special[0] != plain[0]:
            end = int(special[0])
    return RunTemplate(source=template.source, variables=dict(template.variables), end=end)


def question_tokens(process: TemplateProcess, text: str, tokenizer: MarkingTokenizer, place: str) -> tuple[int, ...]:
    """The tokens of a user's question, up to the place where the assistant begins. `place` is its name in errors.

    Raises:
        ConfigError: the template fails, or there is no token for a part of it.
    """
    rendered = process.opened((Message("user", text),), place)
    return tuple(tokenizer.encode_marked(rendered.encode(), ())[0].tolist())
