"""The folder for temporary files that the environment or the system names."""

from __future__ import annotations

import tempfile

from protocol.errors import MachineError


def temporary_folder(remedy: str = "set TMPDIR to one") -> str:
    """The folder, tried for writing.

    Raises:
        MachineError: there is none. `remedy` says what the user can do about it.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise MachineError(
            f"no folder takes temporary files ({error.strerror})", "a writable folder", remedy
        ) from error
