"""The log lines that a command shows on standard error, also while a live screen is up."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from protocol.errors import ConfigError

if TYPE_CHECKING:
    import structlog

_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def log_to_stderr() -> None:
    """Show log lines from the level POTLUCK_LOG on. Tracebacks are without local variables: those hold secrets.

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
    # a level that the user has set is shown whole, even with a live screen
    shown = renderer if "POTLUCK_LOG" in os.environ else _quiet_during_a_live_screen(renderer)
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


def _quiet_during_a_live_screen(render: structlog.typing.Processor) -> structlog.typing.Processor:
    """The same renderer, but while a live screen is up only for warnings and errors. The log file has all lines."""

    def shown(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.ProcessorReturnValue:
        import structlog
        from rich.file_proxy import FileProxy

        if method in ("debug", "info") and isinstance(sys.stderr, FileProxy):
            raise structlog.DropEvent
        return render(logger, method, event)

    return shown
