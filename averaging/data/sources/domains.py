"""Text of four kinds that comes with every install of Potluck, to show that experts specialise without a download.

Python is its own library; English the docstrings of torch and numpy, one document per module; C++ torch's headers; stubs the type
stubs of both. Files are read, and none is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from averaging.data.sources.corpus import is_heldout, name_bytes, python_stdlib_documents
from averaging.data.sources.texts import Text
from protocol.errors import ConfigError, MachineError

LEAST_BYTES: Final = 512
"""Shorter documents are left out."""

MOST_BYTES: Final = 16384
"""Longer documents are cut at a line's end, so that no generated file dominates a domain."""

_PACKAGES: Final = ("numpy", "torch")


@dataclass(frozen=True, slots=True)
class DomainDocument:
    """A document of a domain: the name of its file, its text, and whether it is kept for evaluation."""

    name: str
    data: bytes
    is_heldout: bool


@lru_cache(maxsize=4)
def domain_documents(domain: str, most: int, heldout_every: int = 20) -> Sequence[DomainDocument]:
    """Up to `most` documents of a domain, those whose names have the lowest hashes. They are the same on every machine with the
    same packages. They are cached, because a host reads them several times and finding docstrings is slow.

    Raises:
        ConfigError: no such domain.
        MachineError: this install has none of its files, or one cannot be read.
    """
    if domain not in DOMAINS:
        raise ConfigError(f"domain {domain!r}", f"one of {', '.join(DOMAINS)}")
    found: list[DomainDocument] = []
    for name, path in sorted(DOMAINS[domain](), key=lambda pair: sha256(name_bytes(pair[0])).digest()):
        if len(found) == most:
            break
        data = _cut(_text(domain, path))
        if len(data) >= LEAST_BYTES:
            found.append(DomainDocument(name, data, is_heldout(name, heldout_every)))
    if not found:
        raise MachineError(f"this install has no files of domain {domain!r}", "those that come with torch and numpy")
    return tuple(found)


def domain_texts(domains: Sequence[str], most: int, heldout_every: int = 20) -> Iterator[Text]:
    """The documents of several domains in turn, up to `most` of each. Raises as `domain_documents`."""
    rows = [domain_documents(domain, most, heldout_every) for domain in domains]
    for place in range(max(map(len, rows))):
        for row in rows:
            if place < len(row):
                yield Text(row[place].data, "heldout" if row[place].is_heldout else "train")


def _cut(data: bytes) -> bytes:
    if len(data) <= MOST_BYTES:
        return data
    return data[: data.rfind(b"\n", 0, MOST_BYTES) + 1] or data[:MOST_BYTES].decode("utf8", "ignore").encode()


def _text(domain: str, path: Path) -> bytes:
    """The text as UTF-8; empty if the file has none."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}", "a readable file") from error
    except UnicodeDecodeError:
        return b""
    return (_docstrings(text) if domain == "english" else text).encode()


def _docstrings(text: str) -> str:
    """The docstrings of a module, its classes and its functions, in the order of the file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n\n".join(said for node in ast.walk(tree) if isinstance(node, kinds) and (said := ast.get_docstring(node)))


def _library() -> Iterator[tuple[str, Path]]:
    for document in python_stdlib_documents():
        yield document.name, document.path


def _in_packages(pattern: str) -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations if spec else None) or ():
            for path in Path(root).rglob(pattern):
                yield f"{package}/{path.relative_to(root).as_posix()}", path


DOMAINS: Final[Mapping[str, Callable[[], Iterator[tuple[str, Path]]]]] = MappingProxyType(
    {
        "python": _library,
        "english": lambda: _in_packages("*.py"),
        "c++": lambda: _in_packages("*.h"),
        "stubs": lambda: _in_packages("*.pyi"),
    }
)
"""The files of each domain, with names that are the same on every machine."""
