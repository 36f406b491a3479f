"""Memory and cores within control groups of both versions, each a folder of files as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from averaging.system.machine_limits import Cores, keep_threads_to_cores, read_cores, read_memory

V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 /docker/7 /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
TOTAL = psutil.virtual_memory().total
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


def _machine(root: Path, memberships: str, mounts: str, files: dict[str, str]) -> Path:
    told = {"proc/self/cgroup": memberships, "proc/self/mountinfo": mounts}
    told |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in told.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_machine_without_groups_is_the_whole_machine(tmp_path: Path) -> None:
    assert read_cores(tmp_path) == Cores(8, 8, 64)
    assert read_memory(tmp_path).total_bytes == TOTAL
    assert 0 < read_memory(tmp_path).available_bytes <= TOTAL


def test_newer_groups_limit_by_their_own_files(tmp_path: Path) -> None:
    stat = f"anon {30 * MIB}\ninactive_file {20 * MIB}\n"
    files = {"memory.max": f"{100 * MIB}\n", "memory.current": f"{60 * MIB}\n", "memory.stat": stat}
    root = _machine(tmp_path, "0::/\n", V2, {**files, "cpu.max": "150000 100000\n"})
    memory = read_memory(root)
    assert (memory.total_bytes, memory.available_bytes) == (100 * MIB, 60 * MIB), "old cached files can be given back"
    assert read_cores(root) == Cores(1.5, 8, 64)
    assert read_cores(root).num_threads == 2


def test_group_above_that_allows_less_counts(tmp_path: Path) -> None:
    files = {
        "user.slice/app/memory.max": f"{200 * MIB}\n",
        "user.slice/memory.high": f"{100 * MIB}\n",
        "user.slice/memory.max": "max\n",
        "user.slice/app/cpu.max": "max 100000\n",
        "user.slice/cpu.max": "400000 100000\n",
        "user.slice/app/cpuset.cpus.effective": "0-2,5,6\n",
        "user.slice/cpuset.cpus.effective": "0-63\n",
    }
    root = _machine(tmp_path, "0::/user.slice/app\n", V2, files)
    assert read_memory(root).total_bytes == 100 * MIB
    assert read_cores(root).usable == 4
    (root / "sys/fs/cgroup/user.slice/app/cpuset.cpus.effective").write_text("0-2\n")
    assert read_cores(root).usable == 3


def test_older_groups_are_found_inside_a_container(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": f"{100 * MIB}\n",
        "memory/memory.usage_in_bytes": f"{60 * MIB}\n",
        "memory/memory.stat": f"total_inactive_file {10 * MIB}\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "cpuset/docker/7/cpuset.cpus": "1,3\n",
    }
    memberships = "9:memory:/docker/7\n5:cpu,cpuacct:/docker/7\n3:cpuset:/docker/7\n0::/\n"
    root = _machine(tmp_path, memberships, V1, files)
    memory = read_memory(root)
    assert (memory.total_bytes, memory.available_bytes) == (100 * MIB, 50 * MIB)
    assert read_cores(root).usable == 0.5
    assert read_cores(root).num_threads == 1
    (root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us").write_text("-1\n")
    assert read_cores(root).usable == 2


def test_limits_that_are_not_set_are_none(tmp_path: Path) -> None:
    unset = {"memory/memory.limit_in_bytes": "9223372036854771712\n", "cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}
    root = _machine(tmp_path, "9:memory:/\n5:cpu,cpuacct:/\n0::/../..\n", V1 + V2, unset | {"cpu.max": "odd\n"})
    assert read_memory(root).total_bytes == TOTAL
    assert read_cores(root).usable == 8


def test_libraries_start_as_many_threads_as_a_group_lets_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    keep_threads_to_cores(_machine(tmp_path / "free", "0::/\n", V2, {"cpu.max": "max 100000\n"}))
    assert "OMP_NUM_THREADS" not in os.environ
    limited = _machine(tmp_path / "limited", "0::/\n", V2, {"cpu.max": "200000 100000\n"})
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    keep_threads_to_cores(limited)
    assert os.environ["OMP_NUM_THREADS"] == "5", "its owner's number stays"
    monkeypatch.delenv("OMP_NUM_THREADS")
    keep_threads_to_cores(limited)
    assert os.environ.pop("OMP_NUM_THREADS") == "2"
