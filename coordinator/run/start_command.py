"""The command line that the host of a folder was started with. Messages repeat it, so that a user can paste them."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from averaging.host.settings import flag_of
from protocol.errors import StorageError

COMMAND_FILE: Final = "started_with.json"
"""In the host's folder: the arguments of its last start."""

_MAX_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class StartCommand:
    """`potluck host` with these arguments. Paths are absolute; the text shows those below the working folder without it."""

    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(("potluck", "host", *map(_shown, self.arguments)))

    def changed(self, **values: object) -> StartCommand:
        """The same command with other values of some settings, by their names; None leaves one out. Each one takes a value."""
        flags = {flag_of(name): value for name, value in values.items()}
        kept, rest = list[str](), iter(self.arguments)
        for argument in rest:
            if argument in flags:
                next(rest, None)
            else:
                kept.append(argument)
        added = [text for flag, value in flags.items() if value is not None for text in (flag, str(value))]
        return StartCommand((*kept, *added))


UNKNOWN: Final = StartCommand(("run.toml",))
"""In place of a command that was not recorded."""


def start_command(run_file: Path, flags: Mapping[str, object]) -> StartCommand:
    """The command of a run file and of these flags: HostConfig's fields as given, None if not given."""
    arguments = [str(run_file.absolute())]
    for name, value in flags.items():
        if isinstance(value, bool):
            arguments.append(flag_of(name if value else f"no_{name}"))
        elif value is not None:
            arguments += [flag_of(name), str(value.absolute() if isinstance(value, Path) else value)]
    return StartCommand(tuple(arguments))


def closing_words(command: StartCommand, *, is_over: bool) -> str:
    """The last line of a host that closes, of a run that is complete or goes on."""
    if is_over:
        return f"closed; the run is complete. To serve its page and its model again: {command}"
    return f"closed; peers train on without the host. Go on with: {command}"


def remember_command(folder: Path, command: StartCommand) -> None:
    """Record the command of a host that starts. Blocks.

    Raises:
        StorageError: the folder cannot be written.
    """
    path = folder / COMMAND_FILE
    temporary = path.with_suffix(".unfinished")
    try:
        temporary.write_text(json.dumps({"arguments": command.arguments}) + "\n", encoding="utf8")
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror})", "a writable state folder") from error


def last_command(folder: Path) -> StartCommand:
    """The command of the last start from a folder; UNKNOWN if none is recorded, or it cannot be read. Blocks."""
    try:
        with (folder / COMMAND_FILE).open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return UNKNOWN
    arguments = found.get("arguments") if isinstance(found, dict) else None
    return StartCommand(tuple(map(str, arguments))) if isinstance(arguments, list) and arguments else UNKNOWN


def _shown(argument: str) -> str:
    path = Path(argument)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else argument
