"""The command line that the host of a folder was started with. Messages repeat it, so that a user can paste them."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from averaging.host.settings import flag_of
from coordinator.progress.run_core import Phase
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


class RunAtClose(Enum):
    """How a run stands when its host closes; the value says it to the user."""

    COMPLETE = "; the run is complete. To serve its page and its model again"
    ALONE = "; no peer is here, so nobody trains. Go on with"
    GATHERING = "; the run has not begun, and its peers wait for the host. Go on with"
    TRAINING = "; peers train on without the host. Go on with"
    UNKNOWN = ". Go on with"
    """The host had not opened the run yet, or did not tell."""


def run_at_close(phase: object, num_here: object) -> RunAtClose:
    """How a run stands by the value of its phase and its number of peers here, as in the host's status; UNKNOWN if these are none."""
    if phase == Phase.FINISHED.value:
        return RunAtClose.COMPLETE
    if not isinstance(num_here, int):
        return RunAtClose.UNKNOWN
    if not num_here:
        return RunAtClose.ALONE
    begun = {Phase.GATHERING.value: RunAtClose.GATHERING, Phase.TRAINING.value: RunAtClose.TRAINING}
    return begun[phase] if isinstance(phase, str) and phase in begun else RunAtClose.UNKNOWN


def closing_words(command: StartCommand, run: RunAtClose) -> str:
    """The last line of a host that closes."""
    return f"closed{run.value}: {command}"


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
