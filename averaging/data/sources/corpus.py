"""Text from Python's standard library on this machine, or from files by a pattern. Only the host reads it."""

from __future__ import annotations

import ast
import glob
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError, MachineError

_LEFT_OUT: Final = frozenset(
    [
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "ensurepip",
        "encodings",
        "pydoc_data",
        "site-packages",
        "dist-packages",
        "__pycache__",
        "idle_test",
    ]
)
"""Tests would be two thirds of the text. encodings and pydoc_data hold tables and a second copy of the reference."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text file and whether it is kept for evaluation."""

    name: str
    path: Path
    is_heldout: bool


def name_bytes(name: str) -> bytes:
    """The bytes of a file's name, as the file system has it. It may be no text."""
    return name.encode("utf-8", "surrogateescape")


def is_heldout(name: str, heldout_every: int) -> bool:
    """Whether the hash of a file's name selects it for evaluation, one in `heldout_every`. The split is the same on every
    machine. A name need not be UTF-8.
    """
    return int.from_bytes(sha256(name_bytes(name)).digest()[:8], "big") % heldout_every == 0


def python_stdlib_documents(heldout_every: int = 20) -> Sequence[Document]:
    """The standard library's own source text, sorted by name.

    Raises:
        MachineError: this Python has no library in source form.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if not _LEFT_OUT.intersection(path.relative_to(root).parts)
    )
    if not names:
        raise MachineError(
            f"no .py files below {root}", "Python's library in source form", "use another Python, or text of your own"
        )
    return _documents(root, names, heldout_every)


def python_topics() -> Sequence[str]:
    """English prose that comes with the library: the help topics, taken from the reference manual. Empty if they are missing.

    The file is parsed as data, a dictionary of strings. Nothing of it is run.
    """
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    try:
        body = ast.parse(path.read_bytes()).body
        topics = [ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign)]
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(str(text) for table in topics if isinstance(table, dict) for _, text in sorted(table.items()))


def text_documents(
    pattern: str, heldout_every: int = 20, base: Path | None = None, left_out: str = ""
) -> Sequence[Document]:
    """Files that match a pattern such as "corpus/**/*.txt", relative to `base`. A file that has several names there counts once,
    and an empty one is no document.

    Args:
        left_out: a pattern of files for evaluation only, which are none of these.

    Raises:
        ConfigError: nothing matches, or too little to keep a part for evaluation.
    """
    root = (base or Path.cwd()).resolve()
    found = _without(left_out, pattern, root, _matching_names(pattern, root, "at least two files"))
    names = [name for name in found if (root / name).stat().st_size]
    if len(names) < 2:
        number, empty = "one file" if names else "no file", "" if len(names) == len(found) else " that is not empty"
        raise ConfigError(
            f"data.glob {pattern!r} matches {number}{empty}, whatever its names",
            "at least two, one to evaluate on",
            "split the text",
        )
    return _documents(root, names, heldout_every)


def matching_files(pattern: str, base: Path, key: str = "data.glob", left_out: str = "") -> list[Path]:
    """Files that match a pattern relative to `base`, sorted by name, each once. `key` is the pattern's key in run.toml, and
    `left_out` as of `text_documents`.

    Raises:
        ConfigError: nothing matches.
    """
    root = base.resolve()
    names = _without(left_out, pattern, root, _matching_names(pattern, root, "at least one file", key))
    return [root / name for name in names]


def _without(left_out: str, pattern: str, root: Path, names: list[str]) -> list[str]:
    """The names without the files of another pattern."""
    others = (
        {_identity(root / name) for name in _matching_names(left_out, root, "", "data.prose")} if left_out else set()
    )
    kept = [name for name in names if _identity(root / name) not in others]
    if not kept:
        raise ConfigError(
            f"data.prose {left_out!r} matches all files of data.glob {pattern!r}",
            "files that are never trained on, and others",
            "change one of the patterns",
        )
    return kept


def _identity(path: Path) -> tuple[int, int]:
    """The file behind a name: links have that of their target."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _matching_names(pattern: str, root: Path, expected: str, key: str = "data.glob") -> list[str]:
    """The files' names, sorted. Of several names of a file, the one with the fewest folders; links may lead to a file again and
    again.
    """
    found = [name for name in glob.glob(pattern, root_dir=root, recursive=True) if (root / name).is_file()]
    shortest_first = sorted(found, key=lambda name: (name.count("/"), (root / name).is_symlink(), name))
    names = sorted({_identity(root / name): name for name in reversed(shortest_first)}.values())
    if not names:
        raise ConfigError(
            f"{key} {pattern!r} matches nothing below {root}", expected, "check the pattern and the folder"
        )
    return names


def _documents(root: Path, names: Sequence[str], heldout_every: int) -> Sequence[Document]:
    documents = [Document(name, root / name, is_heldout(name, heldout_every)) for name in names]
    if not any(document.is_heldout for document in documents):
        documents[-1] = Document(names[-1], root / names[-1], True)
    if all(document.is_heldout for document in documents):
        documents[0] = Document(names[0], root / names[0], False)
    return tuple(documents)
