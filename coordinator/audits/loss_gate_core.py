"""Finds commits after which the held-out loss is worse by more than the run's own noise. Pure.

Two commits running have to be worse than the last good ones: by a share of their loss, and by several times the typical change of
late rounds. The typical change is the median of the last changes' distances from their median (MAD, as in Leys et al.,
https://doi.org/10.1016/j.jesp.2013.03.013): one bad round does not move it. A rise is told of until the loss is back, or has stayed
where it is for so long that it is the run's new level, for example after a change of its text.

In a run with a gate (`[round] loss_gate`), a rise holds the run (R28): no round is opened after the current one. If the loss is still
up once that one is over and measured, the host goes back to the last good commit; else the hold is lifted. After MOST_AGAIN rewinds in
few rounds the gate tells and does nothing: what spoils the run is not in the rounds then.

Rules: R26, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.messages.record import MAX_REWINDS

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

HOLD_S: Final = 600
"""A hold lasts so long, in seconds: the run goes on by itself if the host is gone."""

STILL_S: Final = 15.0
"""The round under way is over when a hold has lasted so long, and no commit came for so long."""

MEASURED_WITHIN_S: Final = 120.0
"""So long after a hold the round under way has to be over and measured. Then the commits that are measured decide."""

FEWEST_VOICES: Final = 2
"""So many evaluators must have measured a commit before it counts as worse, where the run has as many voters."""

MOST_AGAIN: Final = 3
AGAIN_WITHIN: Final = 64
"""So many rewinds among so many newest commits are the most."""

MOST_BACK: Final = 48
"""Most commits that a rewind takes back. A milestone lies further behind (R26)."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The held-out loss of one commit, in nats a byte; `index` is its number. `is_agreed`: enough evaluators measured it."""

    index: int
    nats: float
    is_agreed: bool = True


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


# --- what follows from a rise ---------------------------------------------------------------------------------------------------


def measures_on(links: Sequence[ChainLink], points: Iterable[LossPoint], kind: str) -> list[Measure]:
    """The measured commits of the followed lineage, oldest first. A place of a curve tells neither of two commits with one number and
    as many tokens from the other; the newer point is that of the lineage that is followed.

    Args:
        links: its newest commits, oldest first.
    """
    found = {(point.index, point.tokens): point for point in points if point.kind == kind}
    measures: list[Measure] = []
    for link in links:
        point = found.get((link.index, link.total_tokens))
        if point is not None:
            is_agreed = point.voices >= min(FEWEST_VOICES, len(link.roster))
            measures.append(Measure(link.index, point.nats, is_agreed))
    return measures[-MOST_MEASURES:]


@dataclass(frozen=True, slots=True)
class GateFacts:
    """The facts from which the gate decides.

    Attributes:
        links: the newest commits of the followed lineage, oldest first, AGAIN_WITHIN at least where there are so many.
        measures: as `measures_on` gives them.
        hold: the last hold that was signed; None for none.
        number: of the newest rewind of the run, 0 for none.
        now_unix_s: seconds since 1970.
        still_s: for how long no commit came, in seconds.
        is_back: whether the followed lineage has the newest rewind that is known, as far as there is one.
        live: the peers that are heard; None where nobody looks.
    """

    links: Sequence[ChainLink]
    measures: Sequence[Measure]
    hold: Hold | None
    number: int
    now_unix_s: float
    still_s: float
    is_back: bool = True
    live: Collection[PeerId] | None = None


@dataclass(frozen=True, slots=True)
class SignHold:
    """Hold the run because of this rise."""

    number: int
    rise: Rise


@dataclass(frozen=True, slots=True)
class LiftHold:
    """The loss is down again."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class GoBack:
    """Sign a rewind of this number to this commit, because of this rise."""

    number: int
    good: ChainLink
    rise: Rise


GateAction = SignHold | LiftHold | GoBack


def next_action(facts: GateFacts) -> tuple[GateAction | None, str]:
    """The next action of the gate, if there is one, and why in one sentence; no sentence while the loss is as it should be."""
    if not facts.is_back:
        return None, "the host took rounds back, and the peers that are heard have not followed yet"
    rise, hold = agreed_rise(facts.measures), facts.hold
    is_held = hold is not None and hold.number > facts.number and hold.is_on(facts.now_unix_s)
    if rise is None:
        lifted = LiftHold(hold) if hold is not None and is_held else None
        return lifted, "the held-out loss is down again: the hold is lifted" if lifted is not None else ""
    if why_not := why_not_back(facts, rise):
        return None, f"{rise.words}; the run is not held: {why_not}"
    number = facts.number + 1
    if hold is None or not is_held:
        return SignHold(number, rise), f"{rise.words}: no round is opened until the host has decided"
    held_s = facts.now_unix_s - hold.unix_s
    is_measured = facts.measures[-1].index == facts.links[-1].index and facts.measures[-1].is_agreed
    if held_s < MEASURED_WITHIN_S and (min(held_s, facts.still_s) < STILL_S or not is_measured):
        return None, f"{rise.words}; the run is held until its newest round is measured"
    good = next(link for link in facts.links if link.index == rise.good.index)
    num_back = facts.links[-1].index - good.index
    return GoBack(
        number, good, rise
    ), f"{rise.words}: {num_back} rounds are taken back, and the run goes on from round {good.index}"


def agreed_rise(measures: Sequence[Measure]) -> Rise | None:
    """The rise in the measures, without worse commits at the end that too few evaluators measured."""
    rise = rise_in(measures)
    if rise is None or all(each.is_agreed for each in rise.bad):
        return rise
    agreed = [each for each in measures if each.is_agreed or each.index <= rise.good.index]
    return rise_in(agreed)


def why_not_back(facts: GateFacts, rise: Rise) -> str:
    """Why the host may not go back to the last good commit; empty if it may."""
    good = next((link for link in facts.links if link.index == rise.good.index), None)
    if good is None or good.record is None or facts.links[-1].index - good.index > MOST_BACK:
        return f"round {rise.good.index}, the last good one, is more than {MOST_BACK} rounds back"
    if good.is_lone:
        return f"round {rise.good.index}, the last good one, was made without a quorum"
    num_here = sum(facts.live is None or peer in facts.live for peer in good.roster)
    if 2 * num_here <= len(good.roster):
        return f"{num_here} of the {len(good.roster)} voters of round {good.index}, the last good one, are here: too few to go on"
    if facts.number >= MAX_REWINDS:
        return f"the run was taken back {MAX_REWINDS} times, as often as may be"
    if sum(bool(link.rewind) for link in facts.links[-AGAIN_WITHIN:]) >= MOST_AGAIN:
        return f"it was taken back {MOST_AGAIN} times in the last {AGAIN_WITHIN} rounds, and that did not help"
    return ""
