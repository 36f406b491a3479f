"""The message of a failed command: one line on standard error, and for a bug a file with its traceback."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import typer

from averaging.host.hints import with_folder
from averaging.storage.full_disk import is_of_full_disk
from averaging.system.installation import broken_package
from averaging.system.temporary_folder import temporary_folder
from protocol.errors import MachineError, PotluckError, UsageError
from protocol.tables import shortened

_OF_THE_MACHINE: Final = frozenset(
    (
        errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE,
        errno.ENOMEM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
    )
)  # fmt: skip
"""Refusals by the system: a name too long, no permission, no room. Every other OSError counts as a bug."""


def report(error: PotluckError) -> int:
    """Print one line for a person; returns the error's exit code. A full disk has one remedy, whatever it refused."""
    told = error
    if is_of_full_disk(error.found):
        told = MachineError(error.found, "room on that disk", "free space and run it again")
    shown = PotluckError(told.found, told.expected, with_folder(told.remedy))
    typer.echo(f"potluck: {shown.one_line()}", err=True)
    return error.exit_code


def report_bug(error: BaseException) -> None:
    """Keep the traceback in a file and print one line that names it. Without a place for the file the traceback is printed."""
    lines = "".join(traceback.format_exception(error))
    try:
        path = Path(temporary_folder()) / f"potluck-error-{os.getpid()}.log"
        path.write_text(lines, encoding="utf8", errors="backslashreplace")
        told = str(path)
    except (OSError, MachineError):
        typer.echo(lines, err=True)
        told = "the lines above"
    typer.echo(f"potluck: {type(error).__name__}: {error}; this is a bug; please report it with {told}", err=True)


def report_missing(error: ImportError) -> int:
    """Print the line for a package that is missing or broken; a module of ours is a bug. Returns the exit code."""
    told = broken_package(error)
    if told:
        typer.echo(f"potluck: {told}", err=True)
        return MachineError.exit_code
    report_bug(error)
    return PotluckError.exit_code


def refused_by_the_machine(error: OSError) -> MachineError | None:
    """The error for a refusal by the system that no command has explained better; None for a bug."""
    if error.errno not in _OF_THE_MACHINE:
        return None
    place = "" if error.filename is None else f"{shortened(os.fsdecode(error.filename), 200)}: "
    return MachineError(f"{place}{error.strerror}", "a system that allows it", "see: potluck doctor")


def report_usage(error: Exception) -> int:
    """Print one line instead of typer's box. Click's errors mostly name the command that was used wrongly."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error)  # empty where rich has printed the help already
        return UsageError.exit_code
    message: Callable[[], str] = getattr(error, "format_message", error.__str__)
    asked = str(getattr(error, "message", ""))
    if asked.endswith("?") and message().startswith(asked):  # both typer and a newer click have asked what was meant
        return report(UsageError(asked))
    if asked and (possible := getattr(error, "possibilities", None)):
        return report(UsageError(f"{asked}. Did you mean {' or '.join(sorted(possible))}?"))
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "potluck"
    text = message().rstrip(".")
    if text.endswith("?"):  # the answer is in the question
        return report(UsageError(text))
    return report(UsageError(text, f"what `{command} --help` describes", "mend it and try again"))
