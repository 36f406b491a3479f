"""The source of the house, parsed once for all architecture tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "averaging", "peer", "coordinator")


@dataclass(frozen=True)
class Module:
    """One source file: its path from the root, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.path.split("/")[0]

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree; many tests walk it."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def called(self) -> tuple[tuple[str, int], ...]:
        """As `calls`."""
        return tuple((ast.unparse(node.func), node.lineno) for node in self.nodes if isinstance(node, ast.Call))

    def imports(self) -> Iterator[tuple[str, int]]:
        """(dotted name, line) of everything imported anywhere in the file; `from a import b` gives "a.b"."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)

    def calls(self) -> Iterator[tuple[str, int]]:
        """(dotted name as written, line) of every call on a plain or dotted name."""
        yield from self.called

    def functions(self) -> Iterator[tuple[str, int]]:
        """(name with line, length in lines) of every function."""
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                yield f"{self.path}:{node.lineno} {node.name}", length


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Every hand-written Python file below the folders, or the four rooms and the front door when none are given."""
    paths = [ROOT / "potluck.py"] if not folders else []
    for folder in folders or ROOMS:
        paths += sorted((ROOT / folder).rglob("*.py"))
    return tuple(_module(path) for path in paths if not path.stem.endswith(("_pb2", "_pb2_grpc")))


@cache
def _module(path: Path) -> Module:
    text = path.read_text(encoding="utf8")
    return Module(path.relative_to(ROOT).as_posix(), text, ast.parse(text))


def core_modules() -> tuple[Module, ...]:
    """The modules that make decisions: all of protocol but its file readers, the files named *_core.py, and those listed."""
    listed = {
        "peer/demo/summary.py",
        "peer/session/restart_report.py",
        "coordinator/policy/admission.py",
        "coordinator/progress/restart_report.py",
        "averaging/data/assignment.py",
    }
    shells = {
        "protocol/identity/identity_file.py",
        "protocol/identity/key_disk.py",
        "protocol/run/manifest.py",
        "protocol/plain_file.py",
    }
    return tuple(
        module
        for module in modules()
        if module.path not in shells
        and (module.room == "protocol" or module.path.endswith("_core.py") or module.path in listed)
    )
