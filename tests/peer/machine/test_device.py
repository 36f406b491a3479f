from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from peer.machine.card import NO_CARD
from peer.machine.device import (
    card_uuid,
    choose_device,
    give_back_memory,
    has_room_beside_step,
    has_room_of_step,
    is_out_of_memory,
    limit_memory,
)
from protocol.errors import MachineError


def _only(monkeypatch: pytest.MonkeyPatch, *, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_takes_the_fastest_that_is_there(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, chosen: str
) -> None:
    _only(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device("auto").type == chosen
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("wanted", ["cuda", "mps", "abacus"])
def test_a_device_that_is_not_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    _only(monkeypatch, cuda=False, mps=False)
    with pytest.raises(MachineError, match=f"device {wanted} is not available; expected one of: cpu"):
        choose_device(wanted)


def test_running_out_of_memory_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(real.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize(("most_bytes", "share"), [(6_000_000_000, 0.25), (24_000_000_000, 1.0), (1 << 60, 1.0)])
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_card_is_limited_to_its_share_of_all_it_has(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, share: float, device: str
) -> None:
    reported: list[tuple[float, int]] = []
    card = SimpleNamespace(total_memory=24_000_000_000)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {3: card}.__getitem__)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction, index: reported.append((fraction, index))
    )
    limit_memory(torch.device(device), most_bytes)
    assert reported == [(share, 3)]  # by its number: torch takes no "cuda" without one here


@pytest.mark.parametrize(("most_bytes", "share"), [(6_000_000_000, 0.5), (1 << 60, 2.0)])
def test_apples_chip_is_limited_to_a_share_of_what_metal_recommends(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, share: float
) -> None:
    reported: list[float] = []
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12_000_000_000, raising=False)
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", reported.append, raising=False)
    limit_memory(torch.device("mps"), most_bytes)
    assert reported == [share]


def test_a_torch_that_cannot_limit_a_device_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.mps, "set_per_process_memory_fraction", raising=False)
    with pytest.raises(MachineError, match="cannot limit the memory it takes on mps"):
        limit_memory(torch.device("mps"), 1)


def test_the_processors_memory_is_not_limited_so() -> None:
    limit_memory(torch.device("cpu"), 1)
    assert float(torch.zeros(1000).sum()) == 0.0


def test_memory_is_given_back_on_the_accelerator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: given.append("mps"))
    for name in ("cpu", "cuda", "mps"):
        give_back_memory(torch.device(name))
    assert given == ["cuda", "mps"]


def test_second_card_is_named_as_its_driver_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [SimpleNamespace(uuid="1111aaaa"), SimpleNamespace(uuid="9999ffff"), SimpleNamespace()]
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert card_uuid(torch.device("cuda")) == "9999ffff"
    assert card_uuid(torch.device("cuda", 0)) == "1111aaaa"
    assert card_uuid(torch.device("cuda", 2)) is None, "an older torch"
    assert card_uuid(torch.device("cpu")) == NO_CARD


@pytest.mark.parametrize(("most_used", "takes"), [(600, 0), (600, 300), (700, 200)])
def test_a_copy_has_room_beside_a_step_while_both_fit_the_card(
    monkeypatch: pytest.MonkeyPatch, most_used: int, takes: int
) -> None:
    for name, value in (("memory_reserved", 500), ("memory_allocated", 200), ("max_memory_allocated", most_used)):
        monkeypatch.setattr(torch.cuda, name, lambda _, found=value: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (400, 1000))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
    card = torch.device("cuda", 0)
    assert has_room_beside_step(card, takes)
    assert not has_room_beside_step(card, 901 - most_used)
    assert has_room_of_step(card)
    assert has_room_beside_step(torch.device("cpu"), 1 << 60)
