from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from peer.checks import machine_core
from peer.checks.machine_core import (
    DISK_LEAST_BYTES,
    GIB,
    MEMORY_LEAST_BYTES,
    Card,
    Cores,
    Disk,
    Finding,
    Level,
    Memory,
    NoCard,
    NoTorch,
    Readings,
    Rocm,
    Sockets,
    Torch,
    Unread,
    Versions,
    judge,
    report_lines,
    runs_on,
    worst,
)
from protocol.pipeline.placement.peer_memory import peer_memory_bytes
from protocol.tables import in_bytes

CARD = Card("NVIDIA H200", "570.1", (12, 8), (9, 0), 140 * GIB, 139 * GIB)
NO_CARD = NoCard("NVML Shared Library Not Found", is_on_bus=False)
CUDA_TORCH = Torch("2.9.0", "12.8", ("sm_80", "sm_90", "compute_90"), True, False, codecs_problem="")
CPU_TORCH = Torch("2.9.0+cpu", "", (), can_use_cuda=False, can_use_mps=False, codecs_problem="")
FINE = Readings(
    device="auto",
    num_parameters=0,
    graphics=CARD,
    torch=CUDA_TORCH,
    memory=Memory(32 * GIB, 20 * GIB),
    cores=Cores(16, 16),
    disk=Disk("/state", True, 100 * GIB, 0, 2 * GIB),
    sockets=Sockets("/tmp", ""),
    open_files=1024,
    versions=Versions("0.1.0", 1, "3.11.7", "2.9.0", "1.1.12"),
)
LARGE = 1_000_000_000


def _names() -> set[str]:
    """The names of all findings that `potluck doctor` knows, read from the source."""
    found = set()
    for path in Path(machine_core.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            match node:
                case ast.Call(func=ast.Name("Finding"), args=[ast.Constant(str(name)), *_]):
                    found.add(name)
                case ast.Assign(targets=[ast.Name("name")], value=value):
                    found |= {each.value for each in ast.walk(value) if isinstance(each, ast.Constant)}
    return {str(name) for name in found}


NAMES = sorted(_names())


def find(readings: Readings, name: str) -> Finding:
    (found,) = [finding for finding in judge(readings) if finding.name == name]
    return found


def test_machine_that_has_everything_has_nothing_to_mend() -> None:
    findings = judge(FINE)
    assert [f.name for f in findings] == [
        "gpu",
        "torch",
        "codecs",
        "memory",
        "cores",
        "disk",
        "sockets",
        "open files",
        "versions",
    ]
    assert {(f.level, f.fix) for f in findings} == {(Level.OK, "")}


def test_codecs_that_are_not_compiled_are_said_to_be_slow_and_how_they_become_fast() -> None:
    found = find(replace(FINE, torch=replace(CPU_TORCH, codecs_problem="blocks.so: no such file")), "codecs")
    assert found.level is Level.WARN
    assert "blocks.so: no such file" in found.found
    assert "C compiler" in found.fix
    assert all(f.name != "codecs" for f in judge(replace(FINE, torch=NoTorch("broken"))))


@pytest.mark.parametrize(
    ("device", "graphics", "level", "says"),
    [
        ("auto", CARD, Level.OK, "NVIDIA H200, 149.3 GB of 150.3 GB free; driver 570.1, up to CUDA 12.8"),
        ("auto", replace(CARD, memory_free_bytes=GIB - 1), Level.WARN, "end other programs that use the card"),
        ("cpu", replace(CARD, memory_free_bytes=0), Level.OK, "NVIDIA H200"),
        ("auto", NO_CARD, Level.OK, "no NVIDIA card; training runs on the CPU"),
        ("mps", NO_CARD, Level.OK, "training runs on --device mps"),
        ("auto", replace(NO_CARD, is_on_bus=True), Level.WARN, "install its driver; in a container"),
        ("cpu", replace(NO_CARD, is_on_bus=True), Level.OK, "no NVIDIA card"),
        ("cuda", NO_CARD, Level.FAIL, "NVML Shared Library Not Found); install its driver"),
        ("cuda", Unread("no answer within 10 s"), Level.WARN, "could not be read: no answer within 10 s"),
    ],
)
def test_card(device: str, graphics: Card | NoCard | Unread, level: Level, says: str) -> None:
    found = find(replace(FINE, device=device, graphics=graphics), "gpu")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("device", "graphics", "torch", "level", "says"),
    [
        ("auto", CARD, CUDA_TORCH, Level.OK, "has compute_90 for this card, sm_90"),
        ("auto", replace(CARD, capability=(6, 1)), CUDA_TORCH, Level.FAIL, "no kernel image"),
        ("cpu", replace(CARD, capability=(6, 1)), CUDA_TORCH, Level.OK, "on the CPU"),
        ("auto", CARD, CPU_TORCH, Level.WARN, "built without CUDA"),
        ("cuda", CARD, CPU_TORCH, Level.FAIL, "built without CUDA"),
        ("auto", NO_CARD, CPU_TORCH, Level.OK, "on the CPU"),
        ("auto", CARD, replace(CUDA_TORCH, cuda="13.0"), Level.WARN, "needs CUDA 13.0, the driver runs up to 12.8"),
        ("cuda", CARD, replace(CUDA_TORCH, cuda="13.0"), Level.FAIL, "install a newer driver"),
        ("auto", CARD, replace(CUDA_TORCH, cuda="12.9"), Level.OK, "CUDA 12.9"),
        ("auto", CARD, replace(CUDA_TORCH, can_use_cuda=False), Level.WARN, "CUDA_VISIBLE_DEVICES"),
        ("cuda", CARD, replace(CUDA_TORCH, can_use_cuda=False), Level.FAIL, "CUDA_VISIBLE_DEVICES"),
        ("mps", NO_CARD, CPU_TORCH, Level.FAIL, "--device auto"),
        ("mps", NO_CARD, replace(CPU_TORCH, can_use_mps=True), Level.OK, "on mps"),
        ("cpu", NO_CARD, NoTorch("ImportError: libtorch.so"), Level.FAIL, "cannot be imported: ImportError"),
        ("cpu", NO_CARD, Unread("no answer within 60 s"), Level.WARN, "could not be read: no answer within 60 s"),
    ],
)
def test_torch_for_the_card(
    device: str, graphics: Card | NoCard, torch: Torch | NoTorch | Unread, level: Level, says: str
) -> None:
    found = find(replace(FINE, device=device, graphics=graphics, torch=torch), "torch")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("capability", "architectures", "entry"),
    [
        ((8, 9), ("sm_80", "sm_86", "sm_90"), "sm_86"),
        ((8, 0), ("sm_86",), ""),
        ((9, 0), ("sm_90a",), "sm_90a"),
        ((9, 1), ("sm_90a",), ""),
        ((12, 0), ("sm_90", "compute_90"), "compute_90"),
        ((12, 0), ("sm_90", "sm_120"), "sm_120"),
        ((12, 1), ("sm_120f",), "sm_120f"),
        ((12, 0), ("sm_80", "sm_90"), ""),
        ((7, 0), ("compute_75", "sm_75"), ""),
        ((7, 0), ("junk", "sm_", "sm_x", "gfx90a", ""), ""),
        ((7, 0), (), ""),
    ],
)
def test_a_card_runs_code_of_its_own_major_version_and_whatever_can_be_compiled_for_it(
    capability: tuple[int, int], architectures: tuple[str, ...], entry: str
) -> None:
    assert runs_on(capability, architectures) == entry


def test_torch_that_was_not_asked_is_not_judged() -> None:
    assert "torch" not in {finding.name for finding in judge(replace(FINE, torch=None))}


@pytest.mark.parametrize(
    ("available_bytes", "num_parameters", "level", "says"),
    [
        (2 * GIB, 0, Level.OK, "a small model takes about "),
        (peer_memory_bytes(0) - 1, 0, Level.WARN, "end other programs"),
        (MEMORY_LEAST_BYTES - 1, 0, Level.FAIL, "end other programs"),
        (
            peer_memory_bytes(LARGE) - 1,
            LARGE,
            Level.WARN,
            f"the last run takes about {in_bytes(peer_memory_bytes(LARGE))}",
        ),
        (peer_memory_bytes(LARGE), LARGE, Level.OK, "the last run"),
    ],
)
def test_memory(available_bytes: int, num_parameters: int, level: Level, says: str) -> None:
    found = find(
        replace(FINE, memory=Memory(64 * GIB, available_bytes), num_parameters=num_parameters),
        "memory",
    )
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("disk", "run_disk_bytes", "level", "says"),
    [
        (Disk("/state", True, 2 * GIB, 0, 2 * GIB), 0, Level.OK, "the data of a run takes at most 2.1 GB"),
        (Disk("/state", True, 2 * GIB - 1, 0, 2 * GIB), 0, Level.WARN, "--state-dir"),
        (Disk("/state", True, GIB, GIB, 2 * GIB), 0, Level.OK, "1.1 GB of it there"),
        (
            Disk("/state", True, DISK_LEAST_BYTES - 1, 2 * GIB, 2 * GIB),
            0,
            Level.FAIL,
            "67.1 MB free at /state; a peer needs 67.1 MB",
        ),
        (
            Disk("/state", True, 100 * GIB, 0, 2 * GIB),
            110 * GIB,
            Level.WARN,
            "the last run and its data take at most 120.3 GB",
        ),
        (Disk("/state", False, 100 * GIB, 0, 2 * GIB), 0, Level.FAIL, "cannot be written"),
        (Disk("/state", True, 100 * GIB, 0, 2 * GIB, "has no file locks"), 0, Level.FAIL, "another disk"),
    ],
)
def test_disk(disk: Disk, run_disk_bytes: int, level: Level, says: str) -> None:
    found = find(replace(FINE, disk=disk, run_disk_bytes=run_disk_bytes), "disk")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("limit", "level"), [(1024, Level.OK), (1023, Level.WARN), (128, Level.WARN), (127, Level.FAIL)]
)
def test_open_files(limit: int, level: Level) -> None:
    found = find(replace(FINE, open_files=limit), "open files")
    assert found.level is level
    assert (found.fix != "") == (level is not Level.OK)


def test_versions_name_what_is_not_installed() -> None:
    reported = find(FINE, "versions")
    assert reported.found == "potluck 0.1.0, protocol 1, Python 3.11.7, torch 2.9.0, hivemind 1.1.12"
    absent = find(replace(FINE, versions=Versions("0.1.0", 1, "3.11.7", "", "")), "versions")
    assert (absent.level, absent.found) == (Level.FAIL, "torch and hivemind not installed")


def test_what_could_not_be_read_is_a_warning_and_nothing_more() -> None:
    none = Unread("no answer within 2 s")
    findings = judge(
        replace(
            FINE,
            graphics=none,
            torch=none,
            memory=none,
            cores=none,
            disk=none,
            sockets=none,
            open_files=none,
            versions=none,
        ),
    )
    assert {(f.level, f.found) for f in findings} == {(Level.WARN, "could not be read: no answer within 2 s")}


def test_worst_of_all_counts() -> None:
    ok, warn, fail = (Finding("x", level, "") for level in Level)
    assert [worst(some) for some in ((), (ok,), (warn, ok), (ok, fail, warn))] == [
        Level.OK,
        Level.OK,
        Level.WARN,
        Level.FAIL,
    ]


def test_report_is_one_aligned_line_a_finding() -> None:
    rows = (Finding("gpu", Level.OK, "a card"), Finding("open files", Level.FAIL, "up to 9", "ulimit -n 1024"))
    assert report_lines(rows) == ["ok    gpu           a card", "fail  open files    up to 9; ulimit -n 1024"]
    assert report_lines(()) == []


def test_tmp_read_only_is_found_before_an_invite_is_used() -> None:
    found = find(
        replace(FINE, sockets=Sockets("", "no folder can hold the sockets: /tmp (Read-only file system)")), "sockets"
    )
    assert found.level is Level.FAIL
    assert "/tmp (Read-only file system)" in found.found


def test_hidden_cards_and_several_cards_are_no_missing_driver() -> None:
    hidden = NoCard("CUDA_VISIBLE_DEVICES hides every card", is_on_bus=True, are_hidden=True)
    assert find(replace(FINE, graphics=hidden), "gpu") == Finding(
        "gpu", Level.OK, "CUDA_VISIBLE_DEVICES hides every card; training runs on the CPU"
    )
    assert find(replace(FINE, graphics=hidden, device="cuda"), "gpu").level is Level.FAIL
    several = NoCard("there are 2 NVIDIA cards", is_on_bus=True, are_several=True)
    assert find(replace(FINE, graphics=several, device="cuda"), "gpu").level is Level.OK


def test_cores_within_a_group_are_told() -> None:
    assert find(FINE, "cores").found == "16"
    assert find(replace(FINE, cores=Cores(1.5, 64)), "cores").found.startswith("1.5 of the machine's 64")


AMD = Rocm("6.4", "AMD Radeon RX 7900 XTX", "gfx1100", 24 * GIB, "flash")


def test_an_amd_card_is_named_with_how_it_computes_attention() -> None:
    readings = replace(FINE, graphics=NO_CARD, torch=replace(CPU_TORCH, can_use_cuda=True, rocm=AMD))
    assert find(readings, "gpu").found == "AMD Radeon RX 7900 XTX, gfx1100, 25.8 GB; ROCm 6.4"
    assert find(readings, "torch").found == "torch 2.9.0+cpu on ROCm; attention: flash"
    assert find(readings, "torch").level is Level.OK
    on_cpu = replace(readings, device="cpu")
    assert "on the CPU" in find(on_cpu, "torch").found
    assert "no NVIDIA card" in find(on_cpu, "gpu").found


def test_attention_by_plain_products_on_an_amd_card_is_a_warning() -> None:
    slow = replace(CPU_TORCH, can_use_cuda=True, rocm=replace(AMD, attention="math"))
    found = find(replace(FINE, graphics=NO_CARD, torch=slow), "torch")
    assert found.level is Level.WARN
    assert "square of the context" in found.found


@pytest.mark.parametrize("alone", NAMES)
def test_finding_that_is_printed_alone_stands_in_the_columns_of_all_others(alone: str) -> None:
    """The machine's part of the report is printed before the host has answered."""
    assert {"gpu", "bulk", "host's data", "bandwidth"} <= set(NAMES)
    table = report_lines([Finding(name, Level.OK, "found") for name in NAMES])
    (line,) = report_lines([Finding(alone, Level.WARN, "found")])
    assert {row.index("found") for row in table} == {line.index("found")}
