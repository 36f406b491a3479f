"""Renders conversations in a process of its own: `python -m averaging.data.chat.sandbox`, started by template_process.py.

A template comes with a checkpoint, so that it is a stranger's. Jinja's sandbox refuses what could reach out of it, there is no loader
for files, and nothing random or of the clock. Memory, processor time and files are limited here; time is limited by the parent,
which ends this process.

The first line on standard input is a template, {"source": ..., "variables": {...}}. Each further one is a list of [role, content]
pairs, or {"opens": pairs} for their text up to the place where the assistant begins, or {"closes": pairs} for the text by which the
last of them ends. Each is answered by a line: {"text": ..., "spans": [[begin, end], ...]}, {} for the template, or {"error": ...}.
"""

from __future__ import annotations

import json
import resource
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn, TextIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from averaging.data.chat.answers import UnclearAnswers, closing_of, marked_by_marks, marked_by_prefixes, marked_by_tag
from averaging.data.chat.chat_rows import MarkedText, Message

MOST_LETTERS: Final = 1 << 24
"""Of one rendered conversation."""

MOST_MEMORY_BYTES: Final = 1 << 30
MOST_CPU_S: Final = 60
"""Of the processor for one line. It ends a template that loops after its parent was killed."""

MOST_FILES: Final = 32

_MOST_REASON: Final = 200
_RANDOM: Final = ("lipsum",)
_RANDOM_FILTERS: Final = ("random",)


class _TemplateFailed(Exception):
    """The template cannot be used, or failed. The text is a part of a sentence."""


class Generation(Extension):
    """The tag {% generation %} ... {% endgeneration %} around what the assistant wrote, as in transformers. Its text is put between
    marks that no text of a user can hold, since they are drawn for each process.
    """

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]
    begin_mark: ClassVar[str] = f"\x02{secrets.token_hex(16)}\x02"
    end_mark: ClassVar[str] = f"\x03{secrets.token_hex(16)}\x03"

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's own content between the marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (self.begin_mark, self.end_mark))
        begin, end = marks
        return [begin, *body, end]


class Engine:
    """A template, compiled.

    Args:
        source: in Jinja.
        variables: what it may name beside the messages, such as bos_token.

    Raises:
        _TemplateFailed: it is no template.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        for name in _RANDOM:
            environment.globals.pop(name, None)
        for name in _RANDOM_FILTERS:
            environment.filters.pop(name, None)
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _raise
        self._variables = {**variables, "tools": None, "documents": None}
        self._mark = secrets.token_hex(16)
        try:
            self._template = environment.from_string(source)
            self._has_tag = "generation" in {token for _, kind, token in environment.lex(source) if kind == "name"}
        except (jinja2.TemplateError, RecursionError, MemoryError, ValueError) as error:
            raise _TemplateFailed(_reason(error)) from error

    def marked(self, messages: Sequence[Message]) -> MarkedText:
        """The rendered conversation, and its answers.

        Raises:
            _TemplateFailed: the template failed, or its rendering is too long.
            UnclearAnswers: it does not show the answers.
        """
        if self._has_tag:
            return marked_by_tag(self._rendered(messages, False), Generation.begin_mark, Generation.end_mark)
        try:
            return marked_by_prefixes(self._rendered, messages)
        except UnclearAnswers as unclear:
            try:
                return marked_by_marks(self._rendered, messages, self._mark)
            except UnclearAnswers:
                raise unclear from None

    def answer(self, question: object) -> dict[str, object]:
        """The answer to a line after the first. Raises as `marked`."""
        match question:
            case {"opens": pairs}:
                return {"text": self._rendered(_messages(pairs), True)}
            case {"closes": pairs}:
                return {"text": closing_of(self._rendered, _messages(pairs), self._mark)}
        found = self.marked(_messages(question))
        return {"text": found.text, "spans": found.counted}

    def _rendered(self, messages: Sequence[Message], begins_answer: bool) -> str:
        given = [{"role": message.role, "content": message.content} for message in messages]
        parts, left = list[str](), MOST_LETTERS
        try:
            for part in self._template.generate(messages=given, add_generation_prompt=begins_answer, **self._variables):
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise _TemplateFailed(f"it writes more than {MOST_LETTERS:,} letters")
        except _TemplateFailed:
            raise
        except Exception as error:  # a template may fail in any way
            raise _TemplateFailed(_reason(error)) from error
        return "".join(parts)


def _messages(pairs: Any) -> list[Message]:
    return [Message(role, content) for role, content in pairs]


def _as_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _reason(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return (first or type(error).__name__)[:_MOST_REASON]


def serve(lines: TextIO, answers: TextIO, begin_line: Callable[[], None] = lambda: None) -> None:
    """Answer line after line, until there are no more. `begin_line` is called at each."""
    engine: Engine | None = None
    for line in lines:
        begin_line()
        try:
            values = json.loads(line)
            if engine is None:
                engine = Engine(values["source"], values["variables"])
                answer: dict[str, object] = {}
            else:
                answer = engine.answer(values)
        except (_TemplateFailed, UnclearAnswers) as error:
            answer = {"error": _reason(error)}
        except (MemoryError, RecursionError) as error:
            answer = {"error": _reason(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Limit this process, and serve."""
    for kind, most in (
        (resource.RLIMIT_AS, MOST_MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),  # pipes have no size
        (resource.RLIMIT_NOFILE, MOST_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(kind, (most, most))
    serve(sys.stdin, sys.stdout, _renew_cpu_time)


def _renew_cpu_time() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    until_s = int(time.process_time()) + MOST_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (until_s if hard == resource.RLIM_INFINITY else min(until_s, hard), hard))


if __name__ == "__main__":
    main()
