"""The card that is watched is the one that trains, whatever its number."""

from __future__ import annotations

import sys

import pytest

from peer.machine.card import NO_CARD, CardsHidden, CardUnknown, find_card, first_visible, largest_card
from peer.machine.machine import LOOK_EVERY_S, MachineMeter, WatchedCard
from tests.peer.machine.nvml import COOL, HOT, PART, Nvml, NvmlCard


@pytest.mark.parametrize("uuid", [HOT.uuid, HOT.uuid.removeprefix("GPU-"), "GPU-9999"])
def test_second_card_is_found_by_the_uuid_that_torch_names(uuid: str) -> None:
    nvml = Nvml(COOL, HOT)
    assert find_card(nvml, uuid, {"CUDA_VISIBLE_DEVICES": "0"}).whole is HOT


@pytest.mark.parametrize(
    ("visible", "found"),
    [("1", HOT), ("0", COOL), (f"{HOT.uuid},0", HOT), ("GPU-9999", HOT), (" 1 , 0", HOT)],
)
def test_before_torch_has_named_one_it_is_the_first_that_the_process_may_use(visible: str, found: NvmlCard) -> None:
    assert find_card(Nvml(COOL, HOT), None, {"CUDA_VISIBLE_DEVICES": visible}).whole is found


@pytest.mark.parametrize("uuid", [PART.uuid, PART.uuid.removeprefix("MIG-")])
def test_part_of_a_card_has_its_own_memory_and_the_heat_of_the_whole(uuid: str) -> None:
    nvml = Nvml(COOL, HOT, parts={PART.uuid: (PART, HOT)})
    card = find_card(nvml, uuid)
    assert (card.handle, card.whole) == (PART, HOT)
    card = find_card(nvml, None, {"CUDA_VISIBLE_DEVICES": PART.uuid})
    assert (card.handle, card.whole) == (PART, HOT)


def test_one_card_needs_no_name_and_several_do() -> None:
    assert find_card(Nvml(HOT), None, {}).whole is HOT
    with pytest.raises(CardUnknown, match="2 NVIDIA cards"):
        find_card(Nvml(COOL, HOT), None, {})
    assert largest_card(Nvml(COOL, HOT)).whole is HOT


@pytest.mark.parametrize("visible", ["", "-1", "none"])
def test_hidden_cards_are_none(visible: str) -> None:
    with pytest.raises(CardsHidden):
        find_card(Nvml(COOL), None, {"CUDA_VISIBLE_DEVICES": visible})


def test_unset_variable_names_no_card() -> None:
    assert first_visible(None) is None


def test_card_that_the_driver_does_not_know_is_told() -> None:
    with pytest.raises(OSError, match="knows no card GPU-7777"):
        find_card(Nvml(COOL, HOT), "GPU-7777")


def test_second_card_is_watched_as_soon_as_torch_has_named_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(COOL, HOT))
    now_s, named = 100.0, None
    meter = MachineMeter(lambda: now_s)
    meter.trains_on = lambda: named
    seen = []
    for named in (None, HOT.uuid.removeprefix("GPU-"), NO_CARD, COOL.uuid):  # noqa: B007 - the meter asks for it
        seen.append(meter.read().gpu_celsius)
        now_s += LOOK_EVERY_S
    assert seen == [None, 91, None, 35]


def test_second_card_is_watched_from_the_start_if_the_process_may_use_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(COOL, HOT))
    use = MachineMeter().read()
    assert (use.gpu_celsius, use.gpu_busy, use.gpu_watts, use.gpu_memory_bytes) == (91, 0.99, 350.0, 20 << 30)


def test_each_of_several_cards_is_read_by_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(COOL, HOT))
    meter = MachineMeter()
    lost = WatchedCard("GPU-7777", "card 2", 1)
    watched = (WatchedCard(HOT.uuid, "card 0", 0), WatchedCard(COOL.uuid, "card 1", 1), lost)
    meter.watches = lambda: watched
    assert [(card.name, use.gpu_celsius) for card, use in meter.cards()] == [
        ("card 0", 91),
        ("card 1", 35),
        ("card 2", None),
    ]
