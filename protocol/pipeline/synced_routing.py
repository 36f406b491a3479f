"""Which replica of a stage is asked for a piece of work of a synced step, and how long it is waited for.

Who is through with it first is asked, by what each has shown of its speed, and nobody is given what it would still be at when all else
of its stage is done: that waits for a place at who is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from protocol.errors import ConfigError
from protocol.ids import PeerId

UNASKED_SHARE: Final = 0.5
"""Of the time that a replica took, which it is taken to need after each step that asked it nothing."""

_LEAST_WORK_S: Final = 1e-6
"""Below what any clock tells apart."""


@dataclass(frozen=True, slots=True)
class SyncedConfig:
    """Numbers of a step.

    Attributes:
        in_flight: micro-batches under way at once, at most; the stages twice keep all of them busy.
        queue: pieces of work that one replica has at once, at most.
        patience: of the time that a replica takes by what it has shown, after which somebody else is asked, too.
        least_patience_s: and never sooner.
        first_guess_s: of a replica that has shown nothing yet.
    """

    num_stages: int
    num_micro_batches: int
    in_flight: int
    queue: int = 4
    patience: float = 3.0
    least_patience_s: float = 0.2
    first_guess_s: float = 1.0

    def __post_init__(self) -> None:
        if min(self.num_stages, self.num_micro_batches, self.in_flight, self.queue) < 1:
            raise ConfigError(f"{self}", "at least 1 stage, micro-batch, and place for one")


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """One micro-batch at one stage, one way."""

    number: int
    stage: int
    is_backward: bool


@dataclass(frozen=True)
class Replica:
    """What the owner knows of a replica.

    Attributes:
        asked: work that it has, and since when, monotonic.
        work_s: how long it takes for a piece, as a running mean; None before the first.
        free_s: when it finished something last, monotonic.
        summed: micro-batches in the sum that it has delivered.
        was_asked: anything in this step.
    """

    peer: PeerId
    stage: int
    asked: Mapping[Work, float] = field(default_factory=lambda: MappingProxyType({}))
    work_s: float | None = None
    free_s: float = 0.0
    summed: frozenset[int] = frozenset()
    was_asked: bool = False

    @property
    def shown_s(self) -> float | None:
        """How long it is taken to need for a piece in the next step; None where it has shown nothing. A first pass takes long, for
        what is made once, and who is not asked because of it would never come to show that it is fast.
        """
        return self.work_s if self.work_s is None or self.was_asked else UNASKED_SHARE * self.work_s


def patience_s(config: SyncedConfig, replica: Replica) -> float:
    """Work that it has had for longer is late: somebody else is asked, too."""
    work_s = config.first_guess_s if replica.work_s is None else replica.work_s
    return max(config.least_patience_s, config.patience * work_s * len(replica.asked))


def rest_s(config: SyncedConfig, of_stage: Sequence[Replica], num_left: int) -> float:
    """In what time its replicas together do so many pieces of work, each as many as its speed allows."""
    guess_s = _guess_s(config, of_stage)
    speed = sum(1.0 / max(_work_s(replica, guess_s), _LEAST_WORK_S) for replica in of_stage)
    return num_left / speed if speed else 0.0


def chosen(
    config: SyncedConfig, taking: Sequence[Replica], late: Sequence[Replica], within_s: float, drawn: str
) -> Replica | None:
    """The replica that is through with a piece of work first; one that is late with it only where there is no other; None where it
    waits.

    Args:
        taking: those of its stage that do not decline it.
        late: those that have it, and for too long.
        within_s: in which all work of the stage is done.
        drawn: by which those who are as good as each other are told apart.
    """
    guess_s, are_late = _guess_s(config, taking), {replica.peer for replica in late}

    def until_done(replica: Replica) -> tuple[float, bytes]:
        drawn_here = sha256(f"{drawn} {replica.peer}".encode()).digest()
        return (len(replica.asked) + 1) * _work_s(replica, guess_s), drawn_here

    fresh = [replica for replica in taking if replica.peer not in are_late]
    if not fresh:
        return min(taking, key=until_done, default=None)
    free = [replica for replica in fresh if len(replica.asked) < config.queue]
    in_time = [replica for replica in free if until_done(replica)[0] <= within_s]
    first = min(in_time or fresh, key=until_done)
    return first if first in free else None


def _guess_s(config: SyncedConfig, of_stage: Iterable[Replica]) -> float:
    """Who has shown nothing yet is taken for as fast as the fastest, or it would never come to show it."""
    return min((replica.work_s for replica in of_stage if replica.work_s is not None), default=config.first_guess_s)


def _work_s(replica: Replica, guess_s: float) -> float:
    return guess_s if replica.work_s is None else replica.work_s
