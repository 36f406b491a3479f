from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import pytest
import trio

from averaging.trio_errors import run_single_error
from protocol.errors import MachineError


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
        run_single_error(failing(MachineError("no port"), ValueError("also")))


def test_interrupt_before_signals_are_watched_is_no_group_and_no_bug() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_single_error(failing(KeyboardInterrupt(), MachineError("also")))


def test_word_of_the_system_comes_out_of_its_groups() -> None:
    with pytest.raises(OSError, match="no space"):
        run_single_error(failing(OSError(errno.ENOSPC, "no space")))


def test_several_bugs_keep_their_group() -> None:
    with pytest.raises(ExceptionGroup):
        run_single_error(failing(ValueError("a bug"), KeyError("another")))
