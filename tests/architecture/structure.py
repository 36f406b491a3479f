"""Measures of the house: files a folder, imports between rooms, sizes of functions, classes and dataclasses."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

from tests.architecture.source import ROOMS, Module, modules


def folder_of(path: str) -> str:
    """The room that a module stands in: its folder, "." for the front door."""
    return str(PurePosixPath(path).parent)


def files_by_folder() -> dict[str, int]:
    """How many hand-written source files each folder holds, `__init__.py` not counted."""
    return dict(Counter(folder_of(module.path) for module in modules() if not module.path.endswith("__init__.py")))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imported_names(tree: ast.AST, *, for_types: bool = False) -> Iterator[str]:
    """Dotted names that a module imports when it runs: those under TYPE_CHECKING only with `for_types`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (_is_for_types(node) and not for_types):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _imported_names(node, for_types=for_types)


@cache
def room_imports() -> dict[str, set[str]]:
    """For each folder, the other folders that its modules import from."""
    folder_by_name = {module.path.removesuffix(".py").replace("/", "."): folder_of(module.path) for module in modules()}
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        here = folder_of(module.path)
        found.setdefault(here, set())
        for name in _imported_names(module.tree):
            if name.split(".")[0] in ROOMS:
                target = folder_by_name.get(name) or folder_by_name.get(name.rpartition(".")[0])
                if target is not None and target != here:
                    found[here].add(target)
    return dict(found)


def file_imports() -> dict[str, set[str]]:
    """For each module, the others that it imports, also for types only."""
    path_by_name = {module.path.removesuffix(".py").replace("/", "."): module.path for module in modules()}
    found = dict[str, set[str]]()
    for module in modules():
        names = [name for name in _imported_names(module.tree, for_types=True) if name.split(".")[0] in ROOMS]
        targets = (path_by_name.get(name) or path_by_name.get(name.rpartition(".")[0]) for name in names)
        found[module.path] = {target for target in targets if target not in (None, module.path)}
    return found


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of folders or files that import one another in a circle (Tarjan's strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(imports.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(imports):
        if node not in index:
            visit(node)
    return groups


def longest_functions(count: int) -> list[tuple[int, str]]:
    """(lines, name with its file) of the longest functions, longest first."""
    found = [(length, name) for module in modules() for name, length in module.functions()]
    return sorted(found, reverse=True)[:count]


def _classes(module: Module) -> Iterator[ast.ClassDef]:
    yield from (node for node in module.nodes if isinstance(node, ast.ClassDef))


def dataclass_fields() -> dict[str, int]:
    """Number of fields of each dataclass, by "path:name"."""
    return {
        f"{module.path}:{node.name}": sum(isinstance(part, ast.AnnAssign) for part in node.body)
        for module in modules()
        for node in _classes(module)
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def class_methods() -> dict[str, int]:
    """Number of methods of each class, by "path:name"."""
    return {
        f"{module.path}:{node.name}": sum(
            isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body
        )
        for module in modules()
        for node in _classes(module)
    }


def shared_module_names() -> dict[str, list[str]]:
    """Names that two or more modules of the house share, with their paths."""
    paths: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        if not module.path.endswith("__init__.py"):
            paths[PurePosixPath(module.path).stem].append(module.path)
    return {name: found for name, found in paths.items() if len(found) > 1}
