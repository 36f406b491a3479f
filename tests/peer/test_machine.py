from __future__ import annotations

import subprocess
import sys

from peer.machine import LOOK_EVERY_S, MachineMeter, memory_of_family


def test_memory_counts_the_processes_that_we_started() -> None:
    alone_bytes = memory_of_family()
    code = "import sys; block = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        assert memory_of_family() > alone_bytes + (48 << 20)
        child.stdin.close()


def test_between_two_looks_the_last_one_stands() -> None:
    now_s = 100.0
    meter = MachineMeter(lambda: now_s)
    first = meter.read()
    assert first.memory_bytes > 0
    now_s += LOOK_EVERY_S / 2
    assert meter.read() is first
    now_s += LOOK_EVERY_S
    assert meter.read() is not first


def test_a_machine_without_a_card_says_nothing_of_it() -> None:
    meter = MachineMeter()
    meter._has_card = False
    use = meter.read()
    assert (use.gpu_memory_bytes, use.gpu_busy, use.gpu_celsius) == (None, None, None)
