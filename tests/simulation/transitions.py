"""Which events, orders and stages of the round machine a simulation has reached, and which it must reach."""

from __future__ import annotations

import functools
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from protocol.rounds import events, orders
from protocol.rounds import machine as core
from protocol.rounds.messages.messages import RoundMessage

_CARRIERS = (events.MessageArrived, orders.Send)
"""The kinds that are counted by the message in them."""

KNOWN = tuple(
    f"{group} {kind.__name__}"
    for group, kinds in (("event", events.Event), ("message", RoundMessage), ("order", orders.Action))
    for kind in typing.get_args(kinds)
    if kind not in _CARRIERS
)
"""All that there is; stages of leading are named as they are met."""

LEAVING = ("event LeaveOrdered", "event LeaveLogged", "message Leave", "order LogLeave", "sent Leave")
SWITCHING = ("event SwitchPrepared", "event Switched", "order PrepareSwitch", "order Switch")
ANSWERING = ("order AnswerWithCertificate",)
"""Somebody speaks of a base that is committed elsewhere: by links that come back after a while."""

SPINE = ("event SpineMoved",)
FLIPPING = ("event FlipOrdered",)
STUCK = ("event ContributionFailed", "event CommitStalled", "event SwitchFailed")
"""Somebody's bytes, trainer or lineage goes away just then: seldom, and not in every run of a few hundred seeds."""

USELESS = ("event ResultRefused",)
"""A reducer signs a result that nobody can decode: nobody does so by accident, and no profile has one (test_bad_frames.py)."""

APART = ("event ApartNoted",)
"""The host hears others that a peer does not hear: the daemon says so, and worlds have no such host."""

ACCUSING = ("message DoubleVote", "sent DoubleVote", "order ReportDoubleVote")
"""Two acks of one voter on one base: only liars send them (liars.py)."""

AUDITING = ("event SumProven", "message FalseSum", "sent FalseSum", "order FetchSumProof")
"""Members look at sums in one profile alone, and only liars sum falsely."""

NOT_SHOWN = ("event SumWithheld",)
"""Those whose chunks are asked for are all gone just then."""

TAKING_OVER = (
    *(
        f"{way} {kind}"
        for way in ("message", "sent")
        for kind in ("PreVote", "PreVoteRequest", "Promise", "PromiseRequest")
    ),
    "stage asking",
)
REFUSING = ("message Refusal", "sent Refusal")
"""A promise asked for below one that was given: in a few of a hundred seeds, so that no profile demands it."""

MENDING = ("message Mend", "sent Mend", "order DropMember", "event PeerLost")
_SELDOM = {
    *LEAVING,
    *SWITCHING,
    *ANSWERING,
    *SPINE,
    *FLIPPING,
    *STUCK,
    *USELESS,
    *TAKING_OVER,
    *REFUSING,
    *MENDING,
    *ACCUSING,
    *AUDITING,
    *NOT_SHOWN,
    *APART,
}

ROUNDS = (
    *(kind for kind in KNOWN if kind not in _SELDOM),
    *(f"sent {kind}" for kind in ("Ack", "Committed", "Proposal", "Settle")),
    *(f"stage {kind}" for kind in ("promising", "collecting", "settling")),
)
"""The transitions that every swarm meets."""


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
    kind = type(what)
    return _name(group, messages, kind, type(what.message) if kind in _CARRIERS else type(None))


@functools.cache  # as many as there are kinds
def _name(group: str, messages: str, kind: type, message: type) -> str:
    return f"{group} {kind.__name__}" if message is type(None) else f"{messages} {message.__name__}"


def missing(reached: Counter[str], wanted: Sequence[str] = KNOWN) -> list[str]:
    """The transitions that were never met."""
    return [kind for kind in wanted if not reached[kind]]
