"""A chat template, and the process that renders it (averaging/data/chat/sandbox.py)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from averaging.data.chat.chat_rows import MarkedText, Message
from averaging.system.child_python import CHILD_FOLDER, child_environment, python_command
from protocol.errors import ConfigError, MachineError

RENDER_WITHIN_S: Final = 20.0
"""For one conversation. A template takes milliseconds."""

START_WITHIN_S: Final = 120.0

SANDBOX_MODULE: Final = "averaging.data.chat.sandbox"

KEPT_VARIABLES: Final = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONUSERBASE",
)
"""Variables of the environment that Python may need to start. A stranger's template is to have no others near, such as keys."""

_SHORT_TALK: Final = (Message("user", "a"), Message("assistant", "b"))
_SOMETHING_ELSE: Final = "its process answered something else"
_READ_BYTES: Final = 1 << 16
_REMEDY: Final = "mend the template, or name another in data.chat_template"


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template in Jinja.

    Attributes:
        source: its text.
        place: its name in errors.
        variables: what it may name beside the messages: the tokenizer's special tokens.
    """

    source: str
    place: str
    variables: Mapping[str, str] = field(default_factory=dict)


class TemplateProcess:
    """Renders conversations of one template. A context manager: the process ends with the block.

    Args:
        within_s: for one conversation.
    """

    def __init__(self, template: ChatTemplate, *, within_s: float = RENDER_WITHIN_S) -> None:
        self._template, self._within_s = template, within_s
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent, self._rest = b"", b""

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            ConfigError: the template is none.
            MachineError: no process can be started.
        """
        try:
            self._process = subprocess.Popen(
                python_command("-m", SANDBOX_MODULE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=CHILD_FOLDER,
                env=child_environment({name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}),
            )
        except OSError as error:
            raise MachineError(f"no process can be started: {error.strerror}", "one for the chat template") from error
        os.set_blocking(self._pipes[0], False)
        try:
            self._ask(
                {"source": self._template.source, "variables": dict(self._template.variables)}, "", START_WITHIN_S
            )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def marked(self, messages: Sequence[Message], place: str) -> MarkedText:
        """The rendered conversation and its answers. `place` is the row in errors.

        Raises:
            ConfigError: the template fails, takes too long, or does not show the answers.
        """
        (found,) = self.marked_each([(messages, place)])
        return found

    def marked_each(self, talks: Sequence[tuple[Sequence[Message], str]]) -> Iterator[MarkedText]:
        """The same for several, in order. They are rendered while the ones before are used, so that neither process waits for the
        other at each of them. Read it to its end before anything else is asked.
        """
        self._unsent = b"".join(_line_of(_pairs(messages)) for messages, _ in talks)
        for _, place in talks:
            answer = self._answer(f"{place}: ", self._within_s)
            spans = answer.get("spans")
            if not isinstance(spans, list):
                raise self._failed(f"{place}: ", _SOMETHING_ELSE)
            yield MarkedText(self._text(answer, place), tuple((int(begin), int(end)) for begin, end in spans))

    def opened(self, messages: Sequence[Message], place: str) -> str:
        """The rendered conversation, up to the place where the assistant begins. Raises as `marked`."""
        return self._text(self._ask({"opens": _pairs(messages)}, f"{place}: ", self._within_s), place)

    def closing(self) -> str:
        """The text by which an answer ends; empty if the template has none or does not show it. Raises as `marked`."""
        return self._text(self._ask({"closes": _pairs(_SHORT_TALK)}, "", self._within_s), "a short talk")

    def _text(self, answer: Mapping[str, object], place: str) -> str:
        text = answer.get("text")
        if not isinstance(text, str):
            raise self._failed(f"{place}: ", _SOMETHING_ELSE)
        return text

    def _ask(self, question: object, place: str, within_s: float) -> Mapping[str, object]:
        self._unsent = _line_of(question)
        return self._answer(place, within_s)

    def _answer(self, place: str, within_s: float) -> Mapping[str, object]:
        try:
            line = self._line(time.monotonic() + within_s)
        except TimeoutError as error:
            raise self._failed(place, f"it takes more than {within_s:.0f} s") from error
        except BrokenPipeError as error:
            raise self._failed(place, "it ended its process, perhaps for lack of memory") from error
        answer = json.loads(line)
        if "error" in answer:
            raise self._failed(place, str(answer["error"]))
        found: Mapping[str, object] = answer
        return found

    def _line(self, deadline_s: float) -> bytes:
        """The next line of the process, which meanwhile is sent what it was not sent yet. Raises TimeoutError, and BrokenPipeError
        where the process ended.
        """
        ours, theirs = self._pipes
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            ready = _ready({theirs: select.POLLIN, **({ours: select.POLLOUT} if self._unsent else {})}, deadline_s)
            if ours in ready:
                self._unsent = self._unsent[os.write(ours, self._unsent[:_READ_BYTES]) :]
            if theirs in ready:
                part = os.read(theirs, _READ_BYTES)
                if not part:
                    raise BrokenPipeError
                parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    @property
    def _pipes(self) -> tuple[int, int]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise BrokenPipeError
        return process.stdin.fileno(), process.stdout.fileno()

    def _failed(self, place: str, cause: str) -> ConfigError:
        return ConfigError(f"{place}the chat template {self._template.place} fails: {cause}", "one that works", _REMEDY)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _ready(events: Mapping[int, int], deadline_s: float) -> set[int]:
    """The streams that are ready, at least one. Raises TimeoutError."""
    poll = select.poll()
    for stream, event in events.items():
        poll.register(stream, event)
    ready = {stream for stream, _ in poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000.0)}
    if not ready:
        raise TimeoutError
    return ready


def _line_of(question: object) -> bytes:
    return json.dumps(question).encode() + b"\n"


def _pairs(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]
