from __future__ import annotations

import sys
from pathlib import Path

import pytest

from peer.machine import machine
from peer.machine.energy import MACOS, NO_METER, ROOT_ALONE, EnergyMeter, NvmlMeter, RaplMeter
from peer.machine.machine import LOOK_EVERY_S, MachineMeter
from tests.peer.machine.meters import FakeMeter, rapl_zone
from tests.peer.machine.nvml import COOL, HOT, PART, Nvml


def test_cards_that_train_are_counted_once_each_by_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(COOL, HOT, parts={PART.uuid: (PART, HOT)}))
    readings = NvmlMeter(lambda: (PART.uuid, HOT.uuid, COOL.uuid, "GPU-7777")).read()
    assert {reading.name: reading.joules for reading in readings} == {
        HOT.uuid: HOT.millijoules / 1000,
        COOL.uuid: COOL.millijoules / 1000,
    }


def test_packages_and_memory_of_the_processor_are_counted_and_nothing_twice(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000, wraps_at_uj=262_143_328_850)
    rapl_zone(tmp_path, "intel-rapl:0:0", "core", 900_000)
    rapl_zone(tmp_path, "intel-rapl:0:1", "dram", 500_000)
    rapl_zone(tmp_path, "intel-rapl:1", "psys", 9_000_000)
    found = {reading.name: (reading.joules, reading.wraps_at) for reading in RaplMeter(tmp_path).read()}
    assert found == {"intel-rapl:0": (1.0, pytest.approx(262_143.33)), "intel-rapl:0:1": (0.5, None)}


def test_a_zone_without_a_number_is_left_out(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("much\n")
    rapl_zone(tmp_path, "intel-rapl:1", "package-1", 2_000_000)
    assert [reading.name for reading in RaplMeter(tmp_path).read()] == ["intel-rapl:1"]


def test_a_meter_for_root_alone_counts_nothing_and_says_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 1)

    def refused(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return "package-0"

    monkeypatch.setattr("peer.machine.energy._text", refused)
    meter = RaplMeter(tmp_path)
    assert (list(meter.read()), meter.problem) == ([], ROOT_ALONE)


def test_the_sum_begins_at_nothing_and_its_absence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    first, second = FakeMeter("a", 100.0), FakeMeter("b", 50.0)
    both = EnergyMeter((first, second), "linux")
    assert both.read(0.0) == (0.0, "")
    first.joules, second.joules = 130.0, 60.0
    assert both.read(10.0) == (40.0, "")
    first.is_there = second.is_there = False
    assert both.read(20.0) == (40.0, NO_METER)


@pytest.mark.parametrize(("platform", "note"), [("linux", NO_METER), ("darwin", MACOS)])
def test_without_any_meter_there_is_no_number(platform: str, note: str) -> None:
    assert EnergyMeter((), platform).read(0.0) == (None, note)


def test_one_meter_of_two_counts_and_the_other_one_is_named() -> None:
    card, processor = FakeMeter("card", 100.0), FakeMeter("package", 0.0, problem=ROOT_ALONE)
    processor.is_there = False
    assert EnergyMeter((card, processor), "linux").read(0.0) == (0.0, ROOT_ALONE)


def test_what_the_machine_uses_has_its_energy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "RaplMeter", lambda: RaplMeter(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    now_s = 100.0
    meter = MachineMeter(lambda: now_s)
    assert meter.read().energy_joules == 0.0
    (zone / "energy_uj").write_text("41000000\n")
    now_s += LOOK_EVERY_S
    assert meter.read().energy_joules == pytest.approx(40.0)
