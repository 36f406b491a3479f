from __future__ import annotations

import subprocess
import sys

import psutil

from peer.memory_use import FIND_EVERY_S, Family, forget_own_peak, memory_of_family, memory_use, own_peak_bytes


def test_memory_counts_the_processes_that_we_started() -> None:
    alone_bytes = memory_of_family()
    code = "import sys; block = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        assert memory_of_family() > alone_bytes + (48 << 20)
        child.stdin.close()


def test_who_was_started_is_looked_for_now_and_then_and_who_ended_counts_no_longer() -> None:
    family, block = Family(), "import sys; block = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"
    alone_bytes = family.resident_bytes(100.0)
    with subprocess.Popen([sys.executable, "-c", block], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert family.resident_bytes(100.0 + FIND_EVERY_S / 2) < alone_bytes + (48 << 20)
        assert family.resident_bytes(100.0 + FIND_EVERY_S) > alone_bytes + (48 << 20)
    assert family.resident_bytes(101.0 + FIND_EVERY_S) < alone_bytes + (48 << 20)


def test_a_family_that_is_gone_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert memory_of_family(child.pid) == 0


def test_a_peak_outlives_what_was_given_back_and_is_not_the_parents() -> None:
    own_bytes = psutil.Process().memory_info().rss
    forget_own_peak()
    block = bytearray(b"x" * (64 << 20))
    del block
    use = memory_use()
    assert use.own_peak_bytes > own_bytes + (48 << 20)
    assert use.own_peak_bytes >= use.own_bytes > 0
    code = "from peer.memory_use import own_peak_bytes; print(own_peak_bytes())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(child.stdout) < own_peak_bytes()
