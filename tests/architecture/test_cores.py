"""Cores decide and touch nothing; nothing anywhere runs code that came from elsewhere."""

from __future__ import annotations

import ast

from tests.architecture.source import core_modules, modules

CLOCKS_RANDOMNESS_IO = {
    "time", "random", "secrets", "uuid", "os", "io", "pathlib", "socket", "subprocess", "threading",
    "asyncio", "trio", "logging", "structlog", "urllib", "http", "sqlite3", "tempfile", "shutil", "sys",
}  # fmt: skip
CLOCK_READS = (".now", ".utcnow", ".today", "monotonic", "perf_counter")
EXECUTES = {"eval", "exec", "compile", "__import__", "torch.load", "os.system", "os.popen", "yaml.load"}


def test_cores_import_no_clock_no_randomness_and_no_io() -> None:
    found = [
        f"{module.path}:{line} {name}"
        for module in core_modules()
        for name, line in module.imports()
        if name.split(".")[0] in CLOCKS_RANDOMNESS_IO
    ]
    assert found == []


def test_cores_read_no_clock_through_datetime() -> None:
    found = [
        f"{module.path}:{line} {name}"
        for module in core_modules()
        for name, line in module.calls()
        if name.endswith(CLOCK_READS)
    ]
    assert found == []


def test_cores_open_no_file_and_print_nothing() -> None:
    found = [
        f"{module.path}:{line} {name}"
        for module in core_modules()
        for name, line in module.calls()
        if name in {"open", "print", "input"}
    ]
    assert found == []


def test_cores_do_not_await() -> None:
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [
        f"{module.path}:{node.lineno}"
        for module in core_modules()
        for node in module.nodes
        if isinstance(node, waiting)
    ]
    assert found == []


def test_core_rule_has_cores_to_watch() -> None:
    assert len(core_modules()) >= 10


def test_nothing_executes_code_that_came_from_elsewhere() -> None:
    found = [f"{m.path}:{line} {name}" for m in modules() for name, line in m.calls() if name in EXECUTES]
    assert found == []


def test_no_command_goes_through_a_shell() -> None:
    found = [
        f"{module.path}:{node.value.lineno}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.keyword) and node.arg == "shell"
    ]
    assert found == []


def test_input_is_never_checked_by_assert() -> None:
    found = [
        f"{module.path}:{node.lineno}" for module in modules() for node in module.nodes if isinstance(node, ast.Assert)
    ]
    assert found == []
