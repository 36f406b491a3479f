"""Encodes a task's questions as tokens, by the definition of lm-evaluation-harness (its `_encode_pair`).

A choice comes after its context and one space. Spaces at the end of the context belong to the choice. Context and choice are encoded
together, and the context alone: what is longer is the choice. No token stands before the context, unless it is empty: then the end
mark does, as between documents in training.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from averaging.data.shards import MAX_TASK_BYTES, PackedTask, TaskEntry
from averaging.data.tasks.task_file import Prompts, PromptTokens, Questions, QuestionTokens, TaskFile, task_bytes
from averaging.data.tasks.task_lines import Prompt, Question, read_prompts, read_questions
from averaging.data.tokenizer import EncodingError, Tokenizer
from protocol.errors import ConfigError
from protocol.run.evaluate_section import QUESTION, EvaluateSection

DELIMITER = " "
"""Between a context and a choice."""


def packed_task(task: EvaluateSection, base: Path, tokenizer: Tokenizer, context_tokens: int) -> PackedTask:
    """A task's file and its entry in the data set's manifest. Blocks.

    Args:
        base: the folder that the task's path is relative to.
        context_tokens: of the model. A choice is at most as long.

    Raises:
        ConfigError: a file that is no task, or a choice that the model cannot see whole; names file and line.
        MachineError: the file cannot be read.
    """
    file = _encoded(task, base, tokenizer, context_tokens)
    data = task_bytes(file)
    if len(data) > MAX_TASK_BYTES:
        raise ConfigError(
            f"task {task.name!r} has {len(data)} bytes of tokens", f"at most {MAX_TASK_BYTES}", "take fewer questions"
        )
    name = sha256(data).hexdigest()
    return PackedTask(TaskEntry(name=task.name, sha256=name, num_bytes=len(data), num_items=len(file.items)), data)


def _encoded(task: EvaluateSection, base: Path, tokenizer: Tokenizer, context_tokens: int) -> TaskFile:
    if task.kind == "prompts":
        return Prompts(
            items=tuple(_prompt(prompt, tokenizer, context_tokens) for prompt in read_prompts(task, base)),
            end=tokenizer.end,
            vocab_size=max(tokenizer.vocab_size, tokenizer.end + 1),
            answer_tokens=task.answer_tokens,
        )
    questions = read_questions(task, base)
    return Questions(items=tuple(_question(each, task.template, tokenizer, context_tokens) for each in questions))


def _prompt(prompt: Prompt, tokenizer: Tokenizer, context_tokens: int) -> PromptTokens:
    return PromptTokens(text=prompt.text, tokens=_tokens(tokenizer, prompt.text, prompt.place)[-context_tokens:])


def _question(question: Question, template: str, tokenizer: Tokenizer, context_tokens: int) -> QuestionTokens:
    context = template.replace(QUESTION, question.text)
    before = _tokens(tokenizer, context.rstrip(), question.place) if context.strip() else (tokenizer.end,)
    choices = tuple(encoded_choice(tokenizer, context, choice, question.place) for choice in question.choices)
    for choice, tokens in zip(question.choices, choices, strict=True):
        if not 1 <= len(tokens) <= context_tokens:
            raise ConfigError(
                f"{question.place}: choice {choice[:40]!r} has {len(tokens)} tokens after its question",
                f"1 to {context_tokens}, which is model.context_tokens",
                "shorten it, or remove the line",
            )
    return QuestionTokens(
        context=before[-context_tokens:],
        choices=choices,
        lengths=tuple(len(choice.encode()) for choice in question.choices),
        answer=question.answer,
    )


def encoded_choice(tokenizer: Tokenizer, context: str, choice: str, place: str) -> tuple[int, ...]:
    """The tokens of a choice after its context, which may be empty."""
    stripped = context.rstrip()
    whole = _tokens(tokenizer, context + DELIMITER + choice, place)
    return whole[len(_tokens(tokenizer, stripped, place)) if stripped else 0 :]


def _tokens(tokenizer: Tokenizer, text: str, place: str) -> tuple[int, ...]:
    try:
        return tuple(tokenizer.encode(text.encode()).tolist())
    except EncodingError as error:
        raise EncodingError(error.cause, error.line, place) from error
