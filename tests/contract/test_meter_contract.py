"""The promises of every meter of energy: the stand-in of the tests, the kernel's files, NVIDIA's driver, and those of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isfinite
from pathlib import Path

import pytest

from peer.machine.energy import Meter, NvmlMeter, RaplMeter
from tests.peer.machine.meters import FakeMeter, rapl_zone
from tests.peer.machine.nvml import COOL, HOT, Nvml

World = Callable[[Path, pytest.MonkeyPatch], Meter]


def _fake(_folder: Path, _patch: pytest.MonkeyPatch) -> Meter:
    return FakeMeter("fake", 12.5)


def _fake_away(_folder: Path, _patch: pytest.MonkeyPatch) -> Meter:
    meter = FakeMeter("fake", 12.5)
    meter.is_there = False
    return meter


def _files(folder: Path, _patch: pytest.MonkeyPatch) -> Meter:
    rapl_zone(folder, "intel-rapl:0", "package-0", 1_000_000, 262_143_328_850)
    rapl_zone(folder, "intel-rapl:0:0", "dram", 1_000)
    return RaplMeter(folder)


def _no_files(folder: Path, _patch: pytest.MonkeyPatch) -> Meter:
    return RaplMeter(folder / "none")


def _driver(_folder: Path, patch: pytest.MonkeyPatch) -> Meter:
    patch.setitem(sys.modules, "pynvml", Nvml(COOL, HOT))
    return NvmlMeter(lambda: (COOL.uuid, HOT.uuid))


def _no_driver(_folder: Path, patch: pytest.MonkeyPatch) -> Meter:
    nvml = Nvml()

    def fails() -> None:
        raise nvml.NVMLError("Driver Not Loaded")

    patch.setattr(nvml, "nvmlInit", fails)
    patch.setitem(sys.modules, "pynvml", nvml)
    return NvmlMeter(lambda: (None,))


def _own_processor(_folder: Path, _patch: pytest.MonkeyPatch) -> Meter:
    return RaplMeter()


def _own_card(_folder: Path, _patch: pytest.MonkeyPatch) -> Meter:
    return NvmlMeter(lambda: (None,))


WORLDS = [_fake, _fake_away, _files, _no_files, _driver, _no_driver, _own_processor, _own_card]


@pytest.mark.parametrize("world", WORLDS)
def test_a_meter_never_raises_and_counts_on_under_the_same_names(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = world(tmp_path, monkeypatch)
    first, second = meter.read(), meter.read()
    names = [reading.name for reading in first]
    assert names == [reading.name for reading in second]
    assert len(set(names)) == len(names)
    assert all(isfinite(reading.joules) and reading.joules >= 0 for reading in (*first, *second))
    for before, after in zip(first, second, strict=True):
        assert after.joules >= before.joules or before.wraps_at is not None
    assert "\n" not in meter.problem
