"""Ways to break the rules of voting and of taking over in production code: what a test of them must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocol.rounds import attempt, leading, voting
from protocol.rounds import machine as core
from protocol.rounds.messages.messages import Promise
from protocol.rounds.state import OpenRound, RoundStep


def ignores_acks(patch: pytest.MonkeyPatch) -> None:
    """A take-over proposes anew, whatever its voters have acked."""
    patch.setattr(attempt, "settle_again", lambda state, acked, holders, now_s: attempt.propose(state, now_s))


def finishes_the_lowest(patch: pytest.MonkeyPatch) -> None:
    """A take-over finishes the lowest ack that it is told of."""
    patch.setattr(leading, "highest_first", lambda acked: sorted(acked, key=lambda item: item[1].ballot))


def forgets_promises(patch: pytest.MonkeyPatch) -> None:
    """A process that starts does not know its promises."""
    real = core.start

    def start(*args: Any, open_round: OpenRound, **named: Any) -> Any:
        return real(*args, open_round=replace(open_round, promised=None, highest_attempt=0), **named)

    patch.setattr(core, "start", start)


def acks_below_promises(patch: pytest.MonkeyPatch) -> None:
    """A voter acks whatever it promised."""

    def without_promise(real: Callable[..., Any]) -> Callable[..., Any]:
        def broken(state: Any, *args: Any) -> Any:
            step = real(replace(state, open=replace(state.open, promised=None)), *args)
            promised = step.state.open.promised or state.open.promised
            return replace(step, state=replace(step.state, open=replace(step.state.open, promised=promised)))

        return broken

    patch.setattr(voting, "settled", without_promise(voting.settled))
    patch.setattr(voting, "bytes_held", without_promise(voting.bytes_held))


def hides_acks(patch: pytest.MonkeyPatch) -> None:
    """A promise does not tell what was acked."""
    patch.setattr(voting, "Promise", lambda unit, base, ballot, acked: Promise(unit, base, ballot, None))


def promises_below_acks(patch: pytest.MonkeyPatch) -> None:
    """The peer that asked promises its own ballot once it is wanted, whatever it acked or promised meanwhile."""
    real = leading._after_pre_votes

    def after(step: RoundStep, now_s: float) -> RoundStep:
        promised = step.state.open.promised
        forgetful = replace(step.state, open=replace(step.state.open, promised=None))
        then = real(replace(step, state=forgetful), now_s)
        if then.state.open.promised is None:
            return replace(then, state=replace(then.state, open=replace(then.state.open, promised=promised)))
        return then

    patch.setattr(leading, "_after_pre_votes", after)


BREAKS = (
    ignores_acks,
    finishes_the_lowest,
    forgets_promises,
    acks_below_promises,
    hides_acks,
    promises_below_acks,
)
