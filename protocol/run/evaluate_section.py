"""The tables [[evaluate]] of run.toml: tasks by which committed models are measured, beside the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.run.section import Section, Shaped

TaskKind = Literal["multiple_choice", "prompts"]

BUILT_IN: Final = "built-in:"
"""Prefix of the name of a file that every install has."""

QUESTION: Final = "{question}"
"""The place of a question's text in a template."""

MAX_TASKS: Final = 16
MAX_PARTS: Final = 64
MAX_ANSWER_TOKENS: Final = 256

_FIRST_TASK_KEYS: Final = frozenset(["name", "file", "kind", "every_rounds"])
"""Keys that every manifest with a task has."""


class EvaluateSection(Section):
    """A task by which committed models are measured. A file may have several of these tables, each for one task."""

    name: Annotated[
        str,
        Shaped(r"[a-z0-9][a-z0-9_-]{0,31}", "1 to 32 small letters, digits, dashes and underscores"),
    ]
    """Name of the task in curves and metrics."""

    file: Annotated[str, Field(min_length=1, max_length=4096)]
    """JSON lines with question, choices and answer, or with prompt, relative to run.toml. "built-in:plain-facts" is in every install.
    """

    kind: TaskKind = "multiple_choice"
    """The way to measure: "multiple_choice" counts the questions whose right answer is the likeliest; "prompts" shows what the model
    writes after each prompt.
    """

    every_rounds: Annotated[int, Field(ge=1, le=1 << 20)] = 10
    """Rounds from one measurement to the next. The last round is measured in any case."""

    parts: Annotated[int, Field(ge=1, le=MAX_PARTS)] = 1
    """Parts that as many peers measure side by side. At most the number of questions."""

    template: Annotated[str, Field(max_length=4096)] = QUESTION
    """Text before an answer, with the question in the place of {question}, such as "Question: {question} Answer:"."""

    answer_tokens: Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)] = 64
    """Most tokens of an answer to a prompt."""

    chat: bool | None = None
    """Whether a prompt is put to the model as a user's message, by the run's chat template. If not given, it is where the run has
    chats.
    """

    @model_validator(mode="after")
    def _check_keys(self) -> EvaluateSection:
        if QUESTION not in self.template:
            raise ValueError(f'template = "{self.template[:60]}" has no {QUESTION}; expected it once')
        if self.kind == "prompts" and self.template != QUESTION:
            raise ValueError('a template belongs to kind = "multiple_choice"')
        if self.kind != "prompts" and "answer_tokens" in self.model_fields_set:
            raise ValueError('answer_tokens belong to kind = "prompts"')
        if self.kind != "prompts" and self.chat is not None:
            raise ValueError('chat belongs to kind = "prompts"')
        return self

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), _FIRST_TASK_KEYS)

    def is_due(self, index: int, *, is_last: bool) -> bool:
        """Whether the commit with this index is measured. `is_last`: it is the run's last one."""
        return index > 0 and (is_last or index % self.every_rounds == 0)


def tasks_problem(tasks: Sequence[EvaluateSection], shards: str, *, has_chats: bool) -> str:
    """Why a run cannot have these tasks; empty if it can. `has_chats`: a part of its data is chats, so that it has a template."""
    if not tasks:
        return ""
    if shards != "data":
        return (
            f'[[evaluate]] with run.shards = "{shards}": expected "data", where a peer holds a whole model to measure'
        )
    if not has_chats and any(task.chat for task in tasks):
        return '[[evaluate]] with chat = true in a run without chats: expected data.format = "chat", whose template it takes'
    if len(tasks) > MAX_TASKS:
        return f"{len(tasks)} tables [[evaluate]]: expected at most {MAX_TASKS}"
    names = [task.name for task in tasks]
    twice = next((name for name in names if names.count(name) > 1), "")
    return f'two tables [[evaluate]] with name = "{twice}": expected another name for each' if twice else ""
