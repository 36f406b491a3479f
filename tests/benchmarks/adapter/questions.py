"""Questions and answers made of the docstrings of Python's standard library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from averaging.data.sources.corpus import python_stdlib_documents

TURNS: Final = 4
"""Most questions of a chat."""

Questions = list[tuple[str, str]]
"""A chat: each question with its answer."""


def chats() -> Iterator[Questions]:
    """Each asks for what functions of one module do, in the module's order."""
    for document in python_stdlib_documents():
        try:
            tree = ast.parse(document.path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        found = [
            (f"What does {node.name} do?", " ".join(said.split("\n\n")[0].split()))
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node))
        ]
        yield from (found[begin : begin + TURNS] for begin in range(0, len(found), TURNS))
