"""The exit codes of every `potluck` command, each with its cause and what to do. Errors carry theirs (protocol/errors.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OK: Final = 0
BUG: Final = 1
MACHINE: Final = 4
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class ExitCode:
    """Why a command ended so, and what its user does about it."""

    cause: str
    cure: str


EXIT_CODES: Final[dict[int, ExitCode]] = {
    OK: ExitCode("done, or left cleanly", "nothing"),
    BUG: ExitCode("a bug of ours, or a promise that the demo did not keep", "report it, with `potluck bugreport`"),
    2: ExitCode(
        "the command line cannot be understood, or names a peer or an invite that does not exist",
        "see the command's `--help`",
    ),
    3: ExitCode("a file or flag holds a value that cannot work", "correct the value that the line names"),
    MACHINE: ExitCode(
        "this machine lacks something: memory, disk, a free port, a readable file",
        "mend what the line names; `potluck doctor` checks all of it",
    ),
    5: ExitCode("nobody answered at the addresses given", "check that the other side runs and can be reached"),
    6: ExitCode("refused: invite, credential, ban", "ask the host for another invite"),
    7: ExitCode("another protocol version or schema", "install the release that the host runs"),
    8: ExitCode(
        "the run has ended",
        "members get its model with `potluck checkpoint fetch`; others ask the host, or join another run",
    ),
    75: ExitCode("temporary", "run the same command again a little later"),
    INTERRUPTED: ExitCode("interrupted twice, or before it was up", "nothing; one Ctrl-C is enough to leave cleanly"),
}


def exit_code_lines() -> str:
    """The table as text, one code a line, for `potluck --help`."""
    return "\n\n".join(f"{code}: {row.cause}. To do: {row.cure}" for code, row in EXIT_CODES.items())
