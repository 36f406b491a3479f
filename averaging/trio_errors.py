"""Running trio so that an error of ours comes out by itself, whatever groups the nurseries have put around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio

from protocol.errors import PotluckError

T = TypeVar("T")


def run_single_error(main: Callable[[], Awaitable[T]]) -> T:
    """Run trio; what comes out of it is the first error of ours inside groups, bare, so that the user sees its one line; or of others
    the only one, which may be the system's word of a full disk; several bugs come as the group that they are.
    """
    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from group  # before the signals were watched
        errors = list(_leaves(group))
        ours = [error for error in errors if isinstance(error, PotluckError)]
        if not ours and len(errors) > 1:
            raise
        raise (ours or errors)[0] from group


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
