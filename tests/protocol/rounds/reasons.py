"""Checks of the reasons that a step of the round machine gives; the table makes them at every step of every test."""

from __future__ import annotations

from protocol.rounds.events import (
    Event,
    ExchangeMeasured,
    MessageArrived,
    PeersAnswered,
    PeersListed,
    Progressed,
    RoundTicked,
)
from protocol.rounds.messages.messages import Heartbeat
from protocol.rounds.state import RoundStep

NEWS = (Progressed, PeersAnswered, PeersListed, ExchangeMeasured)
"""Events that only tell the machine something: there is nothing to decide."""


def says_why(event: Event, step: RoundStep) -> bool:
    """Whether every order has a reason, and whatever needed a decision was given one."""
    if not all(action.reason for action in step.actions):
        return False
    if isinstance(event, RoundTicked):
        return bool(step.reason or step.waiting)
    is_beat = isinstance(event, MessageArrived) and isinstance(event.message, Heartbeat)
    return isinstance(event, NEWS) or is_beat or bool(step.reason or step.remark or step.actions)
