from __future__ import annotations

from pathlib import Path

import pytest
import trio

from peer.profile.profile_files import ProfileRequest, read_summary, write_request
from peer.profile.profile_service import ASK_WITHIN_S, CANNOT, NO_PROCESS, serve_profiles
from peer.training.worker_channel import ProfileOrder, Reply
from tests.virtual import InlineOffload, VirtualClock


class _Trainer:
    """Answers as it is told, and keeps the orders."""

    def __init__(self, reply: Reply | None, takes_s: float = 0.0) -> None:
        self._reply, self._takes_s = reply, takes_s
        self.orders: list[ProfileOrder] = []

    async def profile(self, order: ProfileOrder) -> Reply | None:
        self.orders.append(order)
        await trio.sleep(self._takes_s)
        return self._reply


async def _served(state_dir: Path, trainer: object, for_s: float = 5.0) -> ProfileRequest:
    clock = VirtualClock()
    request = write_request(state_dir, 3, clock.unix_s())
    with trio.move_on_after(for_s):
        await serve_profiles(state_dir, trainer, clock, InlineOffload())
    return request


async def test_a_request_goes_to_the_training_process_with_its_folder(tmp_path: Path, autojump_clock: object) -> None:
    trainer = _Trainer(Reply(number=1))
    request = await _served(tmp_path, trainer)
    (order,) = trainer.orders
    assert (order.num_steps, order.request) == (3, request.request)
    assert Path(order.folder) == tmp_path.absolute() / "profile"
    assert read_summary(tmp_path, request) is None


@pytest.mark.parametrize("trainer", [_Trainer(None), _Trainer(Reply(number=1), takes_s=2 * ASK_WITHIN_S)])
async def test_a_process_that_ends_or_takes_no_orders_is_said(
    trainer: _Trainer, tmp_path: Path, autojump_clock: object
) -> None:
    request = await _served(tmp_path, trainer, ASK_WITHIN_S + 10)
    found = read_summary(tmp_path, request)
    assert found is not None
    assert found.problem == NO_PROCESS


async def test_training_that_cannot_be_recorded_is_said(tmp_path: Path, autojump_clock: object) -> None:
    request = await _served(tmp_path, object())
    found = read_summary(tmp_path, request)
    assert found is not None
    assert found.problem == CANNOT
