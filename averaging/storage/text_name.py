"""A name in UTF-8 for a file whose own name is none, for libraries that take no other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def text_name(path: Path) -> Iterator[Path]:
    """The path itself if it is text, else a link to it in a temporary folder, which is gone at the end of the block.

    Raises:
        OSError: no link can be made.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with tempfile.TemporaryDirectory(prefix="potluck-") as folder:
            link = Path(folder) / "file"
            link.symlink_to(path.absolute())
            yield link
    else:
        yield path
