from __future__ import annotations

import errno
import os
import resource
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from peer.checks.machine_core import Card, NoCard, NoTorch, Rocm, Sockets, Torch, Unread
from peer.checks.machine_readings import (
    has_nvidia_on_bus,
    read_disk,
    read_graphics,
    read_machine,
    read_open_files,
    read_sockets,
    read_torch,
    within,
)
from protocol.errors import MachineError
from tests.peer.machine.nvml import COOL, HOT, PART, Nvml


def test_reading_that_fails_or_hangs_is_told_and_ends_nothing() -> None:
    release = threading.Event()
    assert within(0.01, release.wait) == Unread("no answer within 0.01 s")
    release.set()
    assert within(5.0, lambda: 1 // 0) == Unread("ZeroDivisionError: integer division or modulo by zero")
    assert within(5.0, lambda: 7) == 7


@pytest.mark.parametrize(
    ("program", "reading"),
    [
        ("import os; os.abort()", NoTorch("it ended with -6")),
        ("import no_such_package", NoTorch("ModuleNotFoundError: No module named 'no_such_package'")),
        ("print('hello')", Unread("its answer cannot be understood")),
        ("", Unread("its answer cannot be understood")),
        ("print('[]')", Unread("its answer cannot be understood")),
        (
            """print('noise\\n{"version": "2", "cuda": "", "architectures": ["sm_80"], "can_use_cuda": 0, "can_use_mps": 1, '
            '"codecs_problem": "none here", "card": "99"}')""",
            Torch("2", "", ("sm_80",), can_use_cuda=False, can_use_mps=True, codecs_problem="none here", card="99"),
        ),
        (
            """print('{"version": "2", "cuda": "", "architectures": [], "can_use_cuda": 1, "can_use_mps": 0, '
            '"codecs_problem": "", "card": "", "rocm": {"version": "6.4", "name": "AMD", "architecture": "gfx1100", '
            '"memory_bytes": 8, "attention": "math"}}')""",
            Torch("2", "", (), True, False, codecs_problem="", rocm=Rocm("6.4", "AMD", "gfx1100", 8, "math")),
        ),
    ],
    ids=["crash", "not installed", "no JSON", "nothing", "other JSON", "good", "ROCm"],
)
def test_torch_is_asked_where_it_can_do_no_harm(program: str, reading: Torch | NoTorch | Unread) -> None:
    assert read_torch(30.0, program) == reading


def test_torch_that_hangs_is_ended_at_the_deadline() -> None:
    assert read_torch(0.3, "import sys; sys.stdin = None; import threading; threading.Event().wait()") == Unread(
        "no answer within 0.3 s"
    )


def test_folder_that_is_not_there_yet_is_judged_by_the_one_above_and_not_made(tmp_path: Path) -> None:
    disk = read_disk(tmp_path / "a" / "b", 1)
    assert (disk.is_writable, disk.taken_bytes, disk.folder) == (True, 0, str(tmp_path / "a" / "b"))
    assert disk.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_disk_counts_what_is_there_and_knows_a_file_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "log").write_bytes(bytes(1000))
    assert read_disk(tmp_path, 1).taken_bytes == 1000
    assert not read_disk(tmp_path / "runs" / "log", 1).is_writable
    assert not read_disk(tmp_path / "runs" / "log" / "below", 1).is_writable


def test_exfat_doctor_knows_what_the_disk_lacks_and_leaves_nothing_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_disk(tmp_path, 1).missing == ""
    monkeypatch.setattr("fcntl.flock", _no_locks)
    assert read_disk(tmp_path / "state", 1).missing.startswith("has no file locks")
    assert list(tmp_path.iterdir()) == []


def _no_locks(_descriptor: int, _operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_sockets_are_tried_and_nothing_of_them_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("TMPDIR", short)
        assert read_sockets(tmp_path / "state") == Sockets(short, "")
        assert list(Path(short).iterdir()) == []

    def none(_roots: object) -> Path:
        raise MachineError("no folder")

    monkeypatch.setattr("averaging.network.libp2p.socket_folder.make_socket_folder", none)
    assert read_sockets(tmp_path) == Sockets("", "no folder")


def test_open_file_limit_is_the_soft_one() -> None:
    assert read_open_files() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_card_without_a_driver_is_seen_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (("0", "0x8086", "0x030000"), ("1", "0x10de", "0x040300"), ("2", "", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    (tmp_path / "3").mkdir()
    assert not has_nvidia_on_bus(tmp_path)
    assert not has_nvidia_on_bus(tmp_path / "absent")
    (tmp_path / "1" / "class").write_text("0x030200\n")
    assert has_nvidia_on_bus(tmp_path)


def test_second_card_is_read_through_its_driver_if_torch_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(COOL, HOT, parts={PART.uuid: (PART, HOT)}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hot = Card("hot", "570.86", (12, 8), (8, 9), 24 << 30, 4 << 30)
    assert read_graphics(HOT.uuid) == hot
    assert read_graphics(None, takes_any=True) == hot
    assert read_graphics(PART.uuid) == Card("part of hot", "570.86", (12, 8), (8, 9), 3 << 30, 2 << 30)
    unknown = read_graphics(None)
    assert isinstance(unknown, NoCard)
    assert unknown.are_several
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = read_graphics(None)
    assert isinstance(hidden, NoCard)
    assert hidden.are_hidden


def test_driver_that_has_lost_its_card_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(HOT)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    def lost(_card: object) -> None:
        raise nvml.NVMLError("GPU is lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetMemoryInfo", lost)
    found = read_graphics(HOT.uuid)
    assert isinstance(found, NoCard)
    assert "lost" in found.reason


def test_every_reading_of_this_machine_is_taken_without_torch(tmp_path: Path) -> None:
    readings = read_machine(tmp_path, "auto", cache_bytes=1, asks_torch=False)
    assert readings.torch is None
    taken = (
        readings.graphics,
        readings.memory,
        readings.disk,
        readings.sockets,
        readings.open_files,
        readings.versions,
    )
    assert not [reading for reading in taken if isinstance(reading, Unread)]
