from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from peer.machine import machine
from peer.machine.machine import LOOK_EVERY_S, MachineMeter, MachineUse


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


@pytest.mark.parametrize(("first", "asked_again"), [(OSError("no driver"), False), (MachineUse(1, 2, 0.5, 60), True)])
def test_a_card_that_was_seen_once_is_asked_again_after_a_failure_and_one_that_never_was_is_not(
    first: OSError | MachineUse, asked_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[OSError | MachineUse] = [first, OSError("busy"), MachineUse(1, 2, 0.5, 70)]

    def look(_memory_bytes: int, _uuid: str | None) -> MachineUse:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(machine, "_with_card", look)
    now_s = 100.0
    meter = MachineMeter(lambda: now_s)
    seen = []
    for _ in range(3):
        seen.append(meter.read().gpu_celsius)
        now_s += LOOK_EVERY_S
    assert seen == ([60, None, 70] if asked_again else [None, None, None])


class _Card:
    """A stand-in for pynvml: a card that gives all figures except the named ones."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *unreported: str) -> None:
        self._unreported = unreported

    def __getattr__(self, name: str) -> Callable[..., object]:
        answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "card",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5_000),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=93),
            "nvmlDeviceGetTemperature": 71,
            "nvmlDeviceGetPowerUsage": 243_700,
        }

        def ask(*_arguments: object) -> object:
            if name in self._unreported:
                raise self.NVMLError("Not Supported")
            return answers[name]

        return ask


@pytest.mark.parametrize(
    ("unreported", "reported"),
    [
        ((), MachineUse(7, 5_000, 0.93, 71, 243.7)),
        (("nvmlDeviceGetUtilizationRates",), MachineUse(7, 5_000, None, 71, 243.7)),
        (("nvmlDeviceGetPowerUsage",), MachineUse(7, 5_000, 0.93, 71, None)),
        (("nvmlDeviceGetTemperature",), MachineUse(7, 5_000, 0.93, None, 243.7)),
    ],
    ids=["all", "not how busy", "no power", "no temperature"],
)
def test_a_figure_that_the_card_does_not_tell_takes_no_other_with_it(
    unreported: tuple[str, ...], reported: MachineUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _Card(*unreported))
    assert machine._with_card(7, None) == reported
