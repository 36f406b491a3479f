"""Encodes a task's questions as tokens, by the definition of lm-evaluation-harness (its `_encode_pair`).

A choice comes after its context and one space. Spaces at the end of the context belong to the choice. Context and choice are encoded
together, and the context alone: what is longer is the choice. No token stands before the context, unless it is empty: then the end
mark does, as between documents in training.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from averaging.data.chat.run_template import RunTemplate, question_tokens
from averaging.data.chat.template_process import TemplateProcess
from averaging.data.shards import MAX_TASK_BYTES, PackedTask, TaskEntry
from averaging.data.tasks.task_file import Prompts, PromptTokens, Questions, QuestionTokens, TaskFile, task_bytes
from averaging.data.tasks.task_lines import Question, read_prompts, read_questions
from averaging.data.tokenizer import EncodingError, Tokenizer
from protocol.errors import ConfigError
from protocol.run.evaluate_section import QUESTION, EvaluateSection

DELIMITER = " "
"""Between a context and a choice."""


def packed_task(
    task: EvaluateSection,
    base: Path,
    tokenizer: Tokenizer,
    context_tokens: int,
    template: RunTemplate | None = None,
) -> PackedTask:
    """A task's file and its entry in the data set's manifest. Blocks.

    Args:
        base: the folder that the task's path is relative to.
        context_tokens: of the model. A choice is at most as long.
        template: of the run's chats; None if it has none. Prompts are put by it, unless the task says otherwise.

    Raises:
        ConfigError: a file that is no task, a choice that the model cannot see whole, or a prompt that the template does not take. It
            names file and line.
        MachineError: the file cannot be read.
    """
    file = _encoded(task, base, tokenizer, context_tokens, template)
    data = task_bytes(file)
    if len(data) > MAX_TASK_BYTES:
        raise ConfigError(
            f"task {task.name!r} has {len(data)} bytes of tokens", f"at most {MAX_TASK_BYTES}", "take fewer questions"
        )
    name = sha256(data).hexdigest()
    return PackedTask(TaskEntry(name=task.name, sha256=name, num_bytes=len(data), num_items=len(file.items)), data)


def _encoded(
    task: EvaluateSection, base: Path, tokenizer: Tokenizer, context_tokens: int, template: RunTemplate | None
) -> TaskFile:
    if task.kind == "prompts":
        is_chat = template is not None if task.chat is None else task.chat
        return _encoded_prompts(task, base, tokenizer, context_tokens, template if is_chat else None)
    questions = read_questions(task, base)
    return Questions(items=tuple(_question(each, task.template, tokenizer, context_tokens) for each in questions))


def _encoded_prompts(
    task: EvaluateSection, base: Path, tokenizer: Tokenizer, context_tokens: int, template: RunTemplate | None
) -> Prompts:
    prompts, end = read_prompts(task, base), tokenizer.end
    if template is None:
        tokens = [_tokens(tokenizer, prompt.text, prompt.place) for prompt in prompts]
    else:
        end = template.end
        with TemplateProcess(template.chat("of the run's chats")) as process:
            tokens = [question_tokens(process, prompt.text, tokenizer, prompt.place) for prompt in prompts]
    return Prompts(
        items=tuple(
            PromptTokens(text=prompt.text, tokens=each[-context_tokens:])
            for prompt, each in zip(prompts, tokens, strict=True)
        ),
        end=end,
        vocab_size=max(tokenizer.vocab_size, tokenizer.end + 1),
        answer_tokens=task.answer_tokens,
    )


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
