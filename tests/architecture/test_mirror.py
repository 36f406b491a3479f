"""The tests mirror the source: every test file of a room names a source file, every decision has a test file."""

from __future__ import annotations

from tests.architecture.source import ROOMS, ROOT, core_modules, modules


def _mirrored(path: str) -> str:
    """ "peer/demo/summary.py" -> "tests/peer/demo/test_summary.py"."""
    folder, _, name = path.rpartition("/")
    return f"tests/{folder}/test_{name}"


def test_every_test_file_of_a_room_names_a_source_file() -> None:
    expected = {_mirrored(module.path) for module in modules()}
    found = [path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / "tests" / room).rglob("test_*.py")]
    assert sorted(set(found) - expected) == []


def test_every_core_has_its_test_file() -> None:
    tables_without_logic = {
        "protocol/errors.py",
        "protocol/ids.py",
        "protocol/rounds/events.py",
        "protocol/rounds/messages/messages.py",
        "protocol/rounds/messages/start.py",
        "protocol/rounds/state.py",
    }
    wanted = {
        _mirrored(module.path)
        for module in core_modules()
        if module.path not in tables_without_logic and not module.path.endswith("__init__.py")
    }
    assert sorted(path for path in wanted if not (ROOT / path).exists()) == []


def test_tests_are_neither_skipped_nor_expected_to_fail_nor_asleep() -> None:
    words = ("mark." + "skip", "mark." + "xfail", "import" + "orskip", "pytest." + "skip(", "time." + "sleep(")
    # benchmarks watch real processes in real time
    watched = [m for m in modules("tests") if not m.path.startswith("tests/benchmarks/")]
    found = [f"{m.path}: {word}" for m in watched for word in words if word in m.text]
    assert found == []
