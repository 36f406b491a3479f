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
        found = single_error(group)
        if found is group:
            raise
        raise found from group


def single_error(error: BaseException) -> BaseException:
    """The error that a user should read of what came out of nurseries: the first of ours, or the only one of others; a Ctrl-C before
    all; several bugs as the group that they are.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    errors = [each for each in _leaves(error) if not isinstance(each, trio.Cancelled)]
    if any(isinstance(each, KeyboardInterrupt) for each in errors):
        return KeyboardInterrupt()  # before the signals were watched
    return first_of_ours(error) or (errors[0] if len(errors) == 1 else error)


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
