"""The log on standard error. People get one plain sentence for each warning; POTLUCK_LOG shows every line as the log file has it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from averaging.host.hints import with_folder
from averaging.host.log_words import AlreadySaid, warning_sentence
from protocol.errors import ConfigError

if TYPE_CHECKING:
    import structlog

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_FOR_PEOPLE: Final = frozenset(("warning", "error", "exception", "critical"))


def log_to_stderr() -> None:
    """Show warnings and errors as sentences, or all log lines from the level POTLUCK_LOG on. Tracebacks are without local variables:
    those hold secrets.

    Raises:
        ConfigError: POTLUCK_LOG is no level.
    """
    import structlog

    level = os.environ.get("POTLUCK_LOG", "info").lower()
    if level not in _LEVELS:
        raise ConfigError(f"POTLUCK_LOG is {level!r}", f"one of {', '.join(_LEVELS)}", "mend or unset it")
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )
    # a level that the user has set is shown whole
    shown = renderer if "POTLUCK_LOG" in os.environ else _sentences(time.monotonic)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), shown],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
    )


class _Stderr:
    """The present standard error: lines that are written while a live screen is up appear above it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _sentences(now_s: Callable[[], float]) -> structlog.typing.Processor:
    """Drops what is no warning and what was said lately. The log file has all lines."""
    said = AlreadySaid()

    def shown(_logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.ProcessorReturnValue:
        import structlog

        sentence = warning_sentence(event) if method in _FOR_PEOPLE else ""
        if not sentence or not said.is_new(sentence, now_s()):
            raise structlog.DropEvent
        return with_folder(sentence)

    return shown
