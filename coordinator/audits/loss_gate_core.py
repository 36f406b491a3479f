"""Finds commits after which the held-out loss is worse by more than the run's own noise. Pure.

Two commits running have to be worse than the last good ones: by a share of their loss, and by several times the typical change of
late rounds. The typical change is the median of the last changes' distances from their median (MAD, as in Leys et al.,
https://doi.org/10.1016/j.jesp.2013.03.013): one bad round does not move it. A rise is told of until the loss is back, or has stayed
where it is for so long that it is the run's new level, for example after a change of its text.

The gate looks and tells. It neither holds a run nor takes commits back.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coordinator.ledger.ledger import LossPoint

MOST_CHANGES: Final = 16
"""Changes that the noise is made of."""

FEWEST_CHANGES: Final = 6
"""With fewer changes nothing is judged: early losses fall fast and tell little of the noise."""

LAST_GOOD: Final = 5
"""Good commits whose median loss is compared with: the lowest of several noisy values would make the next ones look worse."""

WORSE_SHARE: Final = 0.05
"""A commit is worse if its loss is above that of the last good ones by this share at least."""

WORSE_NOISE: Final = 4.0
"""And by so many times the typical change. An honest change lies within that in all but one of some thousand rounds if changes are
normal: 4 MAD are 2.7 standard deviations, and two commits running are asked for.
"""

MOST_MEASURES: Final = 128
"""Points of a curve that are looked at: more than a rise, the noise before it and the level that it ends at take."""

COMMITS_RUNNING: Final = 2
"""So many commits in a row have to be worse: a single value is one peer's word."""

NEW_LEVEL_AFTER: Final = 32
"""Commits after which a loss that stays up is the run's level."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The held-out loss of one commit, in nats a byte; `index` is its number."""

    index: int
    nats: float


@dataclass(frozen=True, slots=True)
class Rise:
    """The loss is worse than the run's noise explains.

    Attributes:
        good: the last commit before it rose.
        bad: the commits since then that are worse, oldest first.
        limit_nats: a loss above this is worse.
    """

    good: Measure
    bad: tuple[Measure, ...]
    limit_nats: float

    @property
    def words(self) -> str:
        """One sentence for people."""
        last = self.bad[-1]
        found = f"held-out loss rose from {self.good.nats:.4g} at round {self.good.index} to {last.nats:.4g} at round {last.index}"
        return f"{found}; noise explains up to {self.limit_nats:.4g}"


def measures_of(points: Iterable[LossPoint], kind: str) -> list[Measure]:
    """The newest points of one curve, in the order of commits."""
    found = sorted((Measure(point.index, point.nats) for point in points if point.kind == kind), key=lambda m: m.index)
    return found[-MOST_MEASURES:]


def noise_of(changes: Sequence[float]) -> float:
    """The median distance of changes, in nats, from their median; 0 for none."""
    if not changes:
        return 0.0
    middle = statistics.median(changes)
    return statistics.median(abs(each - middle) for each in changes)


def rise_in(measures: Iterable[Measure]) -> Rise | None:
    """The rise that the newest commits show; None where the loss is as good as it was, or too little is known.

    Args:
        measures: of the followed lineage, in the order of commits. Commits that nobody measured are left out.
    """
    good, changes = deque[Measure](maxlen=LAST_GOOD), deque[float](maxlen=MOST_CHANGES)
    bad, limit = list[Measure](), 0.0
    for each in measures:
        if good and not bad:
            level = statistics.median(one.nats for one in good)
            limit = level + max(WORSE_SHARE * level, WORSE_NOISE * noise_of(changes))
        if len(changes) >= FEWEST_CHANGES and each.nats > limit and len(bad) < NEW_LEVEL_AFTER:
            bad.append(each)
            continue
        if len(bad) >= NEW_LEVEL_AFTER:
            good.clear()
        elif good and not bad:
            changes.append(each.nats - good[-1].nats)
        good.append(each)
        bad = []
    return Rise(good[-1], tuple(bad), limit) if len(bad) >= COMMITS_RUNNING else None
