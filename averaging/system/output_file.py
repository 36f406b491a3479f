"""The file that a user names for what a command makes. "-" is standard output; what else the command says goes to standard error."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from protocol.errors import StorageError, UsageError

STANDARD_OUTPUT: Final = "-"
"""In the place of a file's name. `./-` is a file of this name."""


def is_printed(file: Path | None) -> bool:
    """Whether the file is standard output."""
    return file is not None and str(file) == STANDARD_OUTPUT


def output_name(file: Path) -> str:
    """The file in a sentence."""
    return "standard output" if is_printed(file) else str(file)


def write_output(file: Path, content: str | bytes, remedy: str = "") -> None:
    """Write the file whole or not at all, or print it. An earlier file is replaced. Text becomes UTF-8, its line ends stay. Blocks.

    Args:
        remedy: the flag that names another file.

    Raises:
        UsageError: what is no text would go to a terminal.
        StorageError: the file cannot be written; an earlier one is unchanged.
    """
    data = content.encode("utf8") if isinstance(content, str) else content
    if is_printed(file):
        _print(data, is_text=isinstance(content, str))
        return
    target = Path(os.path.realpath(file))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        if _takes_no_other(target):
            target.write_bytes(data)
        else:
            temporary.write_bytes(data)
            os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):  # a disk that takes no writes keeps it
            temporary.unlink(missing_ok=True)
        expected = "a file in a writable folder"
        raise StorageError(f"{file} cannot be written ({error.strerror})", expected, remedy) from error


def _takes_no_other(target: Path) -> bool:
    """Whether the file itself has to be written: a pipe, a device, or a file in a folder that takes no new one."""
    return target.exists() and (not target.is_file() or not os.access(target.parent, os.W_OK))


def _print(data: bytes, *, is_text: bool) -> None:
    if sys.stdout is None:  # closed before the start
        raise StorageError("standard output is closed", "an open one, or a file")
    if not is_text and sys.stdout.isatty():
        raise UsageError("this is no text, and standard output is a terminal", "a file or a pipe")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
