"""Times two layouts that both fit, each for a few steps from the anchor. Nothing of it is kept but the speeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from averaging.network.seams.interfaces import Offload, TrainerProgress
from averaging.trio_errors import single_error
from peer.cards.layout_speeds import LayoutSpeeds, speed_key
from peer.training.plan.layout import Layout
from peer.training.plan.layout_core import LayoutChoice, Task, settled
from protocol.errors import MachineError, PotluckError

log = structlog.get_logger()

TRIAL_WITHIN_S: Final = 180.0
"""Time for imports, the search for the micro-batch, compiling, and the measured steps of one layout."""

MEASURED_S: Final = 15.0
"""Steps are timed for so long after the first one, and at least one more is."""

_LOOK_EVERY_S: Final = 0.2


class Tried(Protocol):
    """The part of a trainer that a trial needs."""

    def progress(self) -> TrainerProgress:
        """Its counters."""
        ...


Open = Callable[[Layout], AbstractAsyncContextManager[Tried]]
"""Opens a trainer of a layout that trains from the anchor at once, and keeps and counts nothing."""


class TrialEnded(PotluckError):
    """A trial has no result: the owner's limits do not allow training now."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The means of a trial.

    Attributes:
        speeds: of earlier trials, which are not made again.
        may_compute: whether the owner's limits allow training.
    """

    opens: Open
    speeds: LayoutSpeeds
    may_compute: Callable[[], bool]
    offload: Offload


async def settle_by_trial(choice: LayoutChoice, task: Task, trial: Trial) -> LayoutChoice:
    """The faster of the choice and its rival. Without a rival, or while the owner allows no training, the choice as it
    is.
    """
    if choice.rival is None:
        return choice
    try:
        own = await _speed(choice, task, trial)
        other = await _speed(choice.rival, task, trial)
    except TrialEnded as error:
        log.info("layouts_not_timed", reason=error.one_line())
        return choice
    return settled(choice, own, other)


async def _speed(choice: LayoutChoice, task: Task, trial: Trial) -> float:
    """Tokens/s of a layout; 0 if it failed."""
    cards = [card for world in choice.cards for card in world]
    key = speed_key(choice.layout, cards, task.load, task.inner)
    kept = await trial.offload.run(partial(trial.speeds.read, key))
    if kept is not None:
        return kept
    log.info("layout_timed", layout=choice.layout.reason)
    try:
        measured = await _timed(choice, trial)
    except TrialEnded:
        raise
    except (trio.TooSlowError, PotluckError, OSError) as error:
        reason = error.one_line() if isinstance(error, PotluckError) else str(error)
        log.warning("layout_failed", layout=choice.layout.reason, reason=reason or f"no step in {TRIAL_WITHIN_S:.0f} s")
        return 0.0
    await trial.offload.run(partial(trial.speeds.keep, key, measured))
    return measured


async def _timed(choice: LayoutChoice, trial: Trial) -> float:
    """Tokens/s of a layout. Its errors come bare out of the groups that the trainer's nurseries put around them."""
    try:
        with trio.fail_after(TRIAL_WITHIN_S):
            async with trial.opens(choice.layout) as trainer:
                return await _measured(trainer, trial.may_compute)
    except ExceptionGroup as group:
        raise single_error(group) from group


async def _measured(trainer: Tried, may_compute: Callable[[], bool]) -> float:
    """Tokens/s after the first step."""
    begin_s, begin = 0.0, 0
    while True:
        if not may_compute():
            raise TrialEnded("the owner's limits do not allow training", "a time to train in")
        progress = trainer.progress()
        if progress.state == "held":
            raise MachineError(f"it does not train: {progress.reason}")
        now_s, tokens = trio.current_time(), progress.tokens_trained
        if tokens and not begin:
            begin_s, begin = now_s, tokens
        if begin and tokens > begin and now_s - begin_s >= MEASURED_S:
            return (tokens - begin) / (now_s - begin_s)
        await trio.sleep(_LOOK_EVERY_S)
