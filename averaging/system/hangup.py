"""A terminal that goes away: its signal is a request to leave, and output for it is dropped. Imports nothing heavy."""

from __future__ import annotations

import errno
import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

GOODBYES: Final = (signal.SIGTERM, signal.SIGHUP)
"""The signals besides Ctrl-C's that ask a command to leave: of a service manager, and of a closed terminal."""


@contextmanager
def ending_as_ctrl_c_does() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt the block as Ctrl-C does. A signal that is ignored, as under nohup, stays ignored. Only for the
    main thread.
    """
    numbers = [number for number in GOODBYES if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_DFL)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)  # trio interrupts its own work only where that is safe
    else:  # it is ignored, as in the background of a script
        raise KeyboardInterrupt


def outlive_the_terminal() -> None:
    """Drop what is written to standard output and standard error once their terminal is closed. A daemon in the background would
    end with its next line otherwise. Other outputs stay as they are.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            binary = io.BufferedWriter(_UntilHangup(stream.fileno(), "wb", closefd=False))
            lasting = io.TextIOWrapper(binary, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, lasting)


class _UntilHangup(io.FileIO):
    """A terminal's output, which goes nowhere once the terminal is closed."""

    def write(self, data: Any) -> int:
        """As io.FileIO."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return len(data)
