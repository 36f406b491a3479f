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
        errors, ours = list(_leaves(group)), first_of_ours(group)
        if ours is None and len(errors) > 1:
            raise
        raise ours or errors[0] from group


def first_of_ours(error: BaseException) -> PotluckError | None:
    """The first error of ours inside groups, or the error itself; None if there is none."""
    leaves = _leaves(error) if isinstance(error, BaseExceptionGroup) else (error,)
    return next((leaf for leaf in leaves if isinstance(leaf, PotluckError)), None)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
