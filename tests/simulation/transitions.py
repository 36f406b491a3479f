"""Which events, orders and stages of the round machine a simulation has reached."""

from __future__ import annotations

import functools
import typing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from protocol.rounds import core, orders, state
from protocol.rounds.messages import RoundMessage

KNOWN = tuple(
    f"{group} {kind.__name__}"
    for group, kinds in (("event", state.Event), ("message", RoundMessage), ("order", orders.Action))
    for kind in typing.get_args(kinds)
    if kind not in (state.MessageArrived, orders.Send)
)
"""All that there is; stages of leading are named as they are met."""


@contextmanager
def counted(reached: Counter[str]) -> Iterator[None]:
    """Count what every `core.step` takes and orders, and the stages that a leader comes through."""
    real: Any = core.step

    def step(before: Any, event: Any, *args: Any) -> Any:
        taken = real(before, event, *args)
        reached[_named("event", "message", event)] += 1
        for action in taken.actions:
            reached[_named("order", "sent", action)] += 1
        led, was = taken.state.open.leading, before.open.leading
        if led is not None and (was is None or was.stage != led.stage):
            reached["stage " + led.stage] += 1
        return taken

    setattr(core, "step", step)  # noqa: B010 - a module of another's
    try:
        yield
    finally:
        setattr(core, "step", real)  # noqa: B010


def _named(group: str, messages: str, what: Any) -> str:
    return _name(group, messages, type(what), type(getattr(what, "message", None)))


@functools.cache  # as many as there are kinds
def _name(group: str, messages: str, kind: type, message: type) -> str:
    return f"{group} {kind.__name__}" if message is type(None) else f"{messages} {message.__name__}"


def missing(reached: Counter[str]) -> list[str]:
    """What was never met."""
    return [kind for kind in KNOWN if not reached[kind]]
