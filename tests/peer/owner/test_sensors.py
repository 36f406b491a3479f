from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import psutil
import pytest

from peer.machine.machine import MachineMeter, MachineUse
from peer.owner.controls_core import OwnerPause
from peer.owner.pause_file import write_pause
from peer.owner.sensors import MachineSensors, battery, cpu_celsius
from tests.virtual import VirtualClock


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (None, (None, None)),
        (SimpleNamespace(percent=63.0, power_plugged=False), (True, 63.0)),
        (SimpleNamespace(percent=99, power_plugged=True), (False, 99.0)),
        (SimpleNamespace(percent=80, power_plugged=None), (False, 80.0)),
    ],
    ids=["none there", "draining", "on the mains", "held at a limit"],
)
def test_battery_is_what_the_system_says_of_it(found: object, known: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: found)
    assert battery() == known


def test_battery_or_sensor_that_fails_while_it_is_read_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("gone")

    monkeypatch.setattr(psutil, "sensors_battery", fails)
    monkeypatch.setattr(psutil, "sensors_temperatures", fails)
    assert (battery(), cpu_celsius()) == ((None, None), None)


def test_processor_is_as_hot_as_its_hottest_part_and_other_chips_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chips = {"nvme": [SimpleNamespace(current=88.0)], "coretemp": [SimpleNamespace(current=c) for c in (50.0, 61.0)]}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: chips)
    assert cpu_celsius() == 61.0
    chips.pop("coretemp")
    assert cpu_celsius() is None


async def test_one_look_brings_pause_power_heat_and_the_owners_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(percent=63.0, power_plugged=False))
    monkeypatch.setattr(psutil, "sensors_temperatures", dict)
    (tmp_path / "identity").write_bytes(b"somebody")
    write_pause(tmp_path, OwnerPause())
    meter = MachineMeter(lambda: 0.0)
    monkeypatch.setattr(meter, "_look", lambda: MachineUse(7_000, gpu_celsius=71))
    clock = VirtualClock()
    readings = await MachineSensors(tmp_path, clock, meter, ZoneInfo("UTC")).read()
    assert readings.pause == OwnerPause()
    assert (readings.is_on_battery, readings.battery_percent) == (True, 63.0)
    assert (readings.gpu_celsius, readings.cpu_celsius, readings.memory_bytes) == (71, None, 7_000)
    assert readings.local.timestamp() == pytest.approx(clock.unix_s(), abs=1)
    own = await MachineSensors(tmp_path, clock, meter, None, traffic_bytes=lambda: 77).read()
    assert own.today_bytes == 77
    assert own.local.tzinfo is not None
