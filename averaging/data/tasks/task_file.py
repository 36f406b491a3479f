"""A task as it travels to peers: tokens alone, in one file that is named by its hash like a shard. Peers need no tokenizer for it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from averaging.data.tasks.task_lines import MAX_CHOICES, MAX_ITEMS
from protocol.errors import RemoteProtocolError
from protocol.run.evaluate_section import MAX_ANSWER_TOKENS
from protocol.scores.score_result import MAX_PROMPTS

_Token = Annotated[int, Field(ge=0, lt=1 << 20)]
_Tokens = tuple[_Token, ...]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class QuestionTokens(_Part):
    """One question: the tokens before each choice, those of each choice, and each choice's length in bytes of UTF-8."""

    context: _Tokens
    choices: Annotated[tuple[_Tokens, ...], Field(min_length=2, max_length=MAX_CHOICES)]
    lengths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=MAX_CHOICES)]
    answer: Annotated[int, Field(ge=0, lt=MAX_CHOICES)]


class Questions(_Part):
    """A multiple-choice task."""

    kind: Literal["multiple_choice"] = "multiple_choice"
    items: Annotated[tuple[QuestionTokens, ...], Field(min_length=1, max_length=MAX_ITEMS)]


class PromptTokens(_Part):
    """One prompt: its tokens, and its text for people."""

    text: str
    tokens: Annotated[_Tokens, Field(min_length=1)]


class Prompts(_Part):
    """A task of prompts: an answer ends before the token `end`, or after `answer_tokens`. No token from `vocab_size` on is taken."""

    kind: Literal["prompts"] = "prompts"
    items: Annotated[tuple[PromptTokens, ...], Field(min_length=1, max_length=MAX_PROMPTS)]
    end: _Token
    vocab_size: Annotated[int, Field(ge=1, le=1 << 20)]
    answer_tokens: Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)]


TaskFile = Questions | Prompts
_FILES: Final[TypeAdapter[TaskFile]] = TypeAdapter(Annotated[TaskFile, Field(discriminator="kind")])


def task_bytes(task: TaskFile) -> bytes:
    """The file's bytes. The same task gives the same bytes."""
    return task.model_dump_json().encode()


def open_task(data: bytes) -> TaskFile:
    """A task from its file, whose hash was checked.

    Raises:
        RemoteProtocolError: not a task.
    """
    try:
        return _FILES.validate_json(data)
    except ValidationError as error:
        raise RemoteProtocolError(
            f"a task that cannot be read ({error.error_count()} problems)", "the host's"
        ) from error
