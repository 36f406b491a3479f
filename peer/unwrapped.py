"""Running trio so that an error of ours comes out by itself, whatever groups the nurseries have put around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from protocol.errors import PotluckError


def run_unwrapped(main: Callable[[], Awaitable[int]]) -> int:
    """Run trio; one error of ours inside groups comes out bare, so that the user sees its one line."""
    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from group  # before the signals were watched
        ours = group.subgroup(PotluckError)
        if ours is None:
            raise
        raise _first(ours) from group


def _first(group: BaseExceptionGroup[PotluckError]) -> PotluckError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PotluckError):
        return error
    raise error
