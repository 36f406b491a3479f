"""Commands that a message names. They carry the state folder that the user gave, so that the pasted command finds it, too."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final

_FLAG: Final = "--state-dir"

LONGEST_FOLDER: Final = 300
"""Characters of a folder that a message repeats."""

OF_HOSTS: Final = ("host", "invite list", "invite withdraw", "invite", "ban", "ledger")
OF_PEERS: Final = ("join", "pause", "resume", "doctor", "profile", "history", "checkpoint fetch", "service install")
OF_BOTH: Final = (
    "status", "peers", "rounds", "logs", "bugreport", "stop", "health", "runs", "runs forget", "checkpoint list", "checkpoint verify",
    "checkpoint export", "checkpoint merge", "checkpoint push", "generate", "curves", "where", "uninstall",
)  # fmt: skip
"""The commands that take a state folder, those of two words before the first word alone."""

OF_NEITHER: Final = ("directory",)
"""Commands that take a folder of their own. Hints of a peer or host name it without a folder."""


def with_folder(text: str, arguments: Sequence[str] | None = None) -> str:
    """The text, in which each command that takes a state folder names the one of `arguments`, the command line of this process if
    None. Unchanged where none was given, or a longer one than a line can hold. A host's folder is no peer's, so the other kind's
    commands stay as they are, and so does a command that names a folder already.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    folder = given_folder(given)
    if not folder or len(folder) > LONGEST_FOLDER or "potluck " not in text:
        return text
    kind = _kind_of(given)
    taking = (*(OF_PEERS if kind != "host" else ()), *(OF_HOSTS if kind != "peer" else ()), *OF_BOTH)
    named = "|".join(sorted(map(re.escape, taking), key=len, reverse=True))
    command = re.compile(rf"(potluck (?:{named}))(?![\w-]| --help)(?!(?:(?!potluck ).)*{_FLAG})")
    return command.sub(lambda match: f"{match[1]} {_FLAG} {shlex.quote(folder)}", text)


def _kind_of(arguments: Sequence[str]) -> str:
    """The kind of daemon that a command is about: "host", "peer", or empty for either."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    names = {" ".join(words[:count]) for count in (1, 2)}
    return "host" if names & {*OF_HOSTS} else "peer" if names & {*OF_PEERS} else ""


def given_folder(arguments: Sequence[str]) -> str:
    """The state folder among a command's arguments, the last one; empty if none was given."""
    folder = ""
    for place, argument in enumerate(arguments):
        if argument == _FLAG:
            folder = arguments[place + 1] if place + 1 < len(arguments) else folder
        elif argument.startswith(f"{_FLAG}="):
            folder = argument.partition("=")[2]
    return folder
