"""The exit codes of every `potluck` command, each with its cause. Errors carry theirs (protocol/errors.py)."""

from __future__ import annotations

from typing import Final

OK: Final = 0
BUG: Final = 1
INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[int, str]] = {
    OK: "done, or left cleanly",
    BUG: "a bug of ours, or a promise that the demo did not keep",
    2: "the command line cannot be meant",
    3: "a file or flag holds a value that cannot work",
    4: "this machine lacks something: memory, disk, a free port, a whole and readable file; or the doctor found a fail",
    5: "nobody answered at the addresses given",
    6: "refused: invite, credential, ban",
    7: "another protocol version or schema",
    8: "the run has ended",
    75: "temporary: the same command may work later",
    INTERRUPTED: "interrupted twice, or before it was up: left at once",
}


def exit_code_lines() -> str:
    """The table as text, one code a line, for `potluck --help`."""
    return "\n\n".join(f"{code}: {cause}" for code, cause in EXIT_CODES.items())
