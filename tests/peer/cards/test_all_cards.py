from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from peer.cards.all_cards import cards_of, cpu_cards, only_card_uuid, read_all_cards, with_driver
from peer.cards.torch_cards import torch_cards
from peer.training.plan.cards_core import Card
from protocol.errors import MachineError
from tests.peer.machine.nvml import COOL, HOT, Nvml


def _row(name: str, uuid: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "memory_bytes": 24 << 30,
        "free_bytes": 20 << 30,
        "capability": [8, 6],
        "architecture": "",
        "uuid": uuid,
        "problem": "",
    } | changes


ANSWER = {
    "kind": "cuda",
    "cards": [
        _row("hot", HOT.uuid.removeprefix("GPU-")),
        _row("cool", COOL.uuid),
        _row("gone", "", free_bytes=None, problem="CUDA error: device is lost"),
    ],
    "apart": [[0, 1]],
}


def test_cards_are_read_in_the_order_of_torch_with_the_fault_of_a_lost_one() -> None:
    found = cards_of(ANSWER)
    assert [(card.number, card.card.name, card.uuid, card.device) for card in found.cards] == [
        (0, "hot", HOT.uuid, "cuda:0"),
        (1, "cool", COOL.uuid, "cuda:1"),
        (2, "gone", "", "cuda:2"),
    ]
    assert found.cards[0].card == Card("cuda", "hot", 24 << 30, (8, 6))
    assert found.cards[2].problem == "the card is lost (CUDA error: device is lost)"
    assert found.links.apart == {(0, 1)}


def test_amd_cards_have_no_capability() -> None:
    rows = [_row("AMD", "", architecture="gfx1100", capability=[11, 0])]
    (card,) = cards_of({"kind": "rocm", "cards": rows, "apart": []}).cards
    assert (card.card.capability, card.card.architecture, card.device) == ((0, 0), "gfx1100", "cuda:0")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit(3)", "it ended with 3"),
        ("import no_such_package", "No module named"),
        ("print('hello')", "cannot be understood"),
        ("print('{}')", "cannot be understood"),
    ],
)
def test_a_torch_that_does_not_tell_is_a_line(program: str, reason: str) -> None:
    with pytest.raises(MachineError, match=reason):
        read_all_cards(30.0, program)


def test_a_torch_that_hangs_is_ended_at_the_deadline() -> None:
    with pytest.raises(MachineError, match=r"no answer within 0\.3 s"):
        read_all_cards(0.3, "import threading; threading.Event().wait()")


def test_the_answer_of_this_torch_is_understood() -> None:
    cards_of(json.loads(json.dumps(torch_cards())))


def test_the_driver_tells_heat_reservations_and_fast_links(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml: Any = Nvml(HOT, COOL)
    nvml.NVML_COMPUTEMODE_PROHIBITED, nvml.NVML_P2P_CAPS_INDEX_NVLINK, nvml.NVML_P2P_STATUS_OK = 2, 2, 0
    nvml.nvmlDeviceGetComputeMode = lambda card: 2 if card is COOL else 0
    nvml.nvmlDeviceGetP2PStatus = lambda one, other, kind: 0
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = with_driver(cards_of(ANSWER))
    assert [card.celsius for card in found.cards] == [91.0, 35.0, None]
    assert [bool(card.problem) for card in found.cards] == [False, True, True]
    assert found.cards[1].problem == "it is reserved (compute mode prohibited)"
    assert found.links.fast == {(0, 1)}
    assert replace(found.links, fast=frozenset()) == cards_of(ANSWER).links


def test_an_only_card_is_known_by_its_driver_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(COOL))
    assert only_card_uuid() == COOL.uuid
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(HOT, COOL))
    assert only_card_uuid() == "", "torch sees one of them, and the driver does not tell which"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert only_card_uuid() == COOL.uuid


def test_processes_on_the_cpu_share_the_machines_memory() -> None:
    cards = cpu_cards((0, 3), 16 << 30)
    assert [(card.number, card.device, card.card.memory_bytes) for card in cards] == [
        (0, "cpu", 8 << 30),
        (3, "cpu", 8 << 30),
    ]
