"""How the daemon ends when something goes wrong; what it does while all is well is checked with real processes in tests/e2e."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from peer.config import PeerConfig
from peer.daemon import _unwrapped, run_peer
from protocol.errors import MachineError, RefusedError
from tests.peer.test_joining import INVITE


def failing(*errors: BaseException) -> Callable[[], Awaitable[int]]:
    async def fail(error: BaseException) -> None:
        raise error

    async def main() -> int:
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            for error in errors:
                inner.start_soon(fail, error)
            outer.start_soon(trio.sleep_forever)
        return 0

    return main


def test_error_of_ours_comes_out_of_its_groups() -> None:
    with pytest.raises(MachineError, match="no port"):
        _unwrapped(failing(MachineError("no port"), ValueError("also")))


def test_interrupt_before_signals_are_watched_is_no_group_and_no_bug() -> None:
    with pytest.raises(KeyboardInterrupt):
        _unwrapped(failing(KeyboardInterrupt(), MachineError("also")))


def test_bug_keeps_its_group() -> None:
    with pytest.raises(ExceptionGroup):
        _unwrapped(failing(ValueError("a bug")))


def config(folder: Path, device: str = "cpu") -> PeerConfig:
    return PeerConfig(state_dir=folder, listen_host="127.0.0.1").model_copy(update={"device": device})


def test_expired_invite_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="the invite expired"):
        run_peer(config(tmp_path / "state"), INVITE.encode())
    assert not (tmp_path / "state").exists()


def test_device_that_is_not_there_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("peer.daemon.check_invite", lambda *_: None)
    with pytest.raises(MachineError, match=r"device cuda is not available.*--device auto"):
        run_peer(config(tmp_path / "state", "cuda"), INVITE.encode())
    assert not (tmp_path / "state").exists()
