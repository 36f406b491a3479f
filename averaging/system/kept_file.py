"""A small file that stands in a folder while something runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol.errors import StorageError


@contextmanager
def kept_file(path: Path, text: str) -> Iterator[None]:
    """Keep the file, with this ASCII text, while the block runs. It is whole or absent. A killed process leaves it behind.

    Raises:
        StorageError: it cannot be written.
    """
    temporary = path.with_suffix(".unfinished")
    try:
        temporary.write_text(text, encoding="ascii")
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror})", "a writable state folder") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
