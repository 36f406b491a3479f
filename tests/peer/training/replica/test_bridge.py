"""Copies beside training: all values are those of one moment, whatever training does meanwhile."""

from __future__ import annotations

import threading

import pytest
import torch

from peer.training.replica.bridge import PIECE_BYTES, Bridge

CPU = torch.device("cpu")
ENDS_WITHIN_S = 60.0


def _parameters() -> list[torch.Tensor]:
    return [torch.arange(12.0).view(3, 4), torch.arange(5.0), torch.arange(PIECE_BYTES / 4 + 3)]


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_snapshot_has_the_values_of_its_moment_although_training_goes_on(is_beside: bool) -> None:
    parameters, bridge = _parameters(), Bridge(CPU, is_beside=is_beside)
    rooms = [torch.zeros_like(parameter) for parameter in parameters]
    bridge.send(list(zip(parameters, rooms, strict=True)))
    for parameter in parameters:
        parameter.fill_(-1.0)
    bridge.wait_sent(ENDS_WITHIN_S)
    assert all(torch.equal(room, before) for room, before in zip(rooms, _parameters(), strict=True))


def test_a_card_without_memory_for_a_copy_writes_at_once() -> None:
    parameter, room = torch.ones(3), torch.zeros(3)

    class Full(torch.Tensor):
        def clone(self) -> torch.Tensor:  # type: ignore[override]
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    bridge = Bridge(CPU, is_beside=True)
    bridge.send([(parameter.as_subclass(Full), room)])
    assert torch.equal(room, torch.ones(3)), "nobody waits for it"


def test_values_in_the_machines_memory_are_written_at_once_and_no_second_copy_is_made_of_them() -> None:
    before, room = set(threading.enumerate()), torch.zeros(3)
    bridge = Bridge(torch.device("meta"), is_beside=True)  # another device than theirs, as a card is
    bridge.send([(torch.ones(3), room)])
    assert torch.equal(room, torch.ones(3))
    assert set(threading.enumerate()) <= before, "threads of other tests may end meanwhile"


def test_whoever_asks_is_told_once_a_snapshot_is_written_and_why_it_is_not() -> None:
    told: list[BaseException | None] = []
    bridge = Bridge(CPU, is_beside=True)
    bridge.when_sent(told.append)
    assert told == [None], "nothing is under way"
    bridge.send([(torch.ones(2), torch.zeros(3))])
    with pytest.raises(RuntimeError):
        bridge.wait_sent(ENDS_WITHIN_S)
    bridge.when_sent(told.append)
    assert isinstance(told[1], RuntimeError)


def test_a_copy_that_fails_is_told_to_who_waits_for_it() -> None:
    bridge = Bridge(CPU, is_beside=True)
    bridge.send([(torch.ones(3), torch.zeros(3, dtype=torch.float32).expand(3)), (torch.ones(2), torch.zeros(3))])
    with pytest.raises(RuntimeError):
        bridge.wait_sent(ENDS_WITHIN_S)


def test_values_arrive_as_they_were_when_the_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    values, bridge = _parameters(), Bridge(CPU, is_beside=True)
    bridge.bring(values)
    assert all(map(torch.equal, bridge.brought(values), values))
    others = [value + 1 for value in values]
    assert all(map(torch.equal, bridge.brought(others), others)), "nothing of the last time is left"


def test_on_the_cpu_nothing_starts_a_thread() -> None:
    before = set(threading.enumerate())
    bridge = Bridge(CPU)
    bridge.bring(_parameters())
    bridge.send([(torch.ones(3), torch.zeros(3))])
    assert set(threading.enumerate()) <= before, "threads of other tests may end meanwhile"
