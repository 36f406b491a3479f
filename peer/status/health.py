"""Notes on the health of this peer, and on a host that follows another lineage.

`HealthNotes` records refused disk writes and a state that differs from the attested one.

`LineageDivergence` records that the host follows a lineage whose commits this peer cannot get.

`Isolation` records that others are at work whom this peer does not hear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from averaging.rounds.lineage.round_reports import RoundReport, StateDiffers, StateHealed, TaskFailed
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.tables import duration

log = structlog.get_logger()

SHOWN_S: Final = 3600.0
"""A refused write is shown for this long. It is retried with the next round, which may be an hour away."""


UNHEARD_AFTER_S: Final = 20.0
"""Peers hear each other within seconds of a start."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Since when this peer has heard no other member although others are at work, or may be; None while it is not so.

    `live_others` are those that the host hears, 0 if the host is away.
    """

    since_s: float | None = None
    live_others: int = 0

    @property
    def is_apart(self) -> bool:
        """Whether to commit nothing alone."""
        return self.since_s is not None

    def sentence(self, now_s: float) -> str:
        """The consequence for the owner, in one sentence; empty while there is nothing to say."""
        if self.since_s is None or now_s - self.since_s < UNHEARD_AFTER_S:
            return ""
        others = (
            f"{self.live_others} others are at work"
            if self.live_others > 1
            else "another peer is at work"
            if self.live_others
            else "others may be at work, the host does not answer"
        )
        return (
            f"no other peer is heard for {duration(now_s - self.since_s)}: {others}, and neither side can connect to the other; "
            "what is trained here is kept and counts once they can; `potluck doctor` shows how this peer can be reached"
        )


@dataclass
class HealthNotes:
    """Problems that the rounds reported. `num_refused` counts the tasks that failed because the disk refused.

    `isolation_text` says that others are at work whom this peer does not hear.
    """

    num_refused: int = 0
    refusal: str = ""
    refused_s: float = 0.0
    differs: str = ""
    isolation: Isolation = field(default_factory=Isolation)
    isolation_text: str = ""

    def note_isolation(self, found: Isolation, now_s: float) -> None:
        """Note whether others are at work that this peer does not hear; the owner is told once."""
        text = found.sentence(now_s)
        if text and not self.isolation_text:
            log.warning("unheard", reason=text)
        if self.isolation_text and not found.is_apart:
            log.info("heard_again", reason="other peers are heard again, or no other is at work")
        self.isolation, self.isolation_text = found, text

    def take(self, report: RoundReport, now_s: float) -> None:
        """Note a report from the rounds of any unit. `now_s` is a time of the monotonic clock."""
        match report:
            case TaskFailed(is_of_disk=True, reason=reason):
                self.num_refused += 1
                self.refusal, self.refused_s = reason, now_s
            case StateDiffers(reason):
                self.differs = reason
            case StateHealed():
                self.differs = ""

    def sentence(self, refused: Sequence[str], now_s: float) -> str:
        """All problems in one line, empty if there are none. `refused`: per unit, why the last generation was not written."""
        is_new = self.refusal and now_s - self.refused_s < SHOWN_S
        reasons = dict.fromkeys([*([self.refusal] if is_new else []), *filter(None, refused)])
        sentences = [f"the disk refuses: {reason}" for reason in reasons]
        return "; ".join([*sentences, *([self.differs] if self.differs else [])])


APART_AFTER_S: Final = 60.0
"""A peer that is one round behind catches up within seconds. After this long, no donor answers or the line is too slow."""


@dataclass(frozen=True, slots=True)
class LineageDivergence:
    """Since when the host's head has not been on our lineage, None while it is on it. The indexes are those of the host's last
    answer.
    """

    since_s: float | None = None
    host_index: int = 0
    own_index: int = 0

    def sentence(self, now_s: float) -> str:
        """The consequence for the owner, in one sentence; empty while there is nothing to say."""
        if self.since_s is None or now_s - self.since_s < APART_AFTER_S:
            return ""
        return (
            f"apart from the run for {duration(now_s - self.since_s)}: the host follows a round {self.host_index} that is not here, "
            f"this peer is at a round {self.own_index} of its own; what is trained here counts once a peer with the run's rounds "
            "can be reached; `potluck doctor` shows how"
        )


def isolation(
    before: Isolation, *, hears_anybody: bool, live_others: int | None, is_outbound_only: bool, now_s: float
) -> Isolation:
    """The next value. `live_others` is None if the host does not answer: then a peer to which nobody can connect cannot know whether
    others are at work.
    """
    may_others_work = is_outbound_only if live_others is None else live_others > 0
    if hears_anybody or not may_others_work:
        return Isolation()
    return Isolation(now_s if before.since_s is None else before.since_s, live_others or 0)


def after_report(
    before: LineageDivergence, links: Sequence[ChainLink], host_head: CommitId, host_index: int, now_s: float
) -> LineageDivergence:
    """The next value after an answer of the host. `links` is our lineage from its first commit, or empty."""
    place = host_index - links[0].index if links else 0
    is_here = not links or (0 <= place < len(links) and links[place].commit == host_head)
    if is_here:
        return LineageDivergence()
    since_s = now_s if before.since_s is None else before.since_s
    return LineageDivergence(since_s, host_index, links[-1].index)
