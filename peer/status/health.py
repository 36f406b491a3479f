"""Notes on the health of this peer, and on a host that follows another lineage.

`HealthNotes` records refused disk writes and a state that differs from the attested one.

`LineageDivergence` records that the host follows a lineage whose commits this peer cannot get.

`Isolation` records that others are at work whom this peer does not hear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from averaging.rounds.lineage.round_reports import RoundReport, StateDiffers, StateHealed, TaskFailed
from averaging.storage.full_disk import full_disk_sentence, is_of_full_disk
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.tables import duration

SHOWN_S: Final = 3600.0
"""A refused write is shown for this long. It is retried with the next round, which may be an hour away."""


FULL_SHOWN_S: Final = 600.0
"""A full disk is shown for this long after it last refused: it refuses with every round until there is room."""


@dataclass
class HealthNotes:
    """Problems that the rounds reported. `num_refused` counts the tasks that failed because the disk refused. `closed_ports` is the
    sentence about ports of the host that do not answer, empty if all do.
    """

    num_refused: int = 0
    refusal: str = ""
    refused_s: float = 0.0
    differs: str = ""
    closed_ports: str = ""

    def hears_of_ports(self, sentence: str) -> None:
        """Set the sentence about the host's ports, empty once all answer."""
        self.closed_ports = sentence

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

    def sentence(self, refused: Sequence[str], now_s: float, folder: Path, *, is_full: bool = False) -> str:
        """All problems in one line, empty if there are none. A full disk is told once, however many writes it refused.

        Args:
            refused: per unit, why the last generation was not written.
            now_s: monotonic seconds.
            folder: the state folder.
            is_full: whether its disk was found full.
        """
        shown_s = FULL_SHOWN_S if is_of_full_disk(self.refusal) else SHOWN_S
        is_new = self.refusal and now_s - self.refused_s < shown_s
        reasons = dict.fromkeys([*([self.refusal] if is_new else []), *filter(None, refused)])
        others = [f"the disk refuses: {reason}" for reason in reasons if not is_of_full_disk(reason)]
        has_no_room = is_full or len(others) < len(reasons)
        sentences = [*([full_disk_sentence(folder)] if has_no_room else []), *others]
        return "; ".join(filter(None, [self.closed_ports, *sentences, self.differs]))


OFFLINE_AFTER_S: Final = 30.0
"""A peer whose host and peers are all silent for this long is offline. Reports and heartbeats come far more often."""


def offline_sentence(silent_s: Sequence[float], after_s: float = OFFLINE_AFTER_S) -> str:
    """The consequence for the owner while nobody answers; empty if somebody does.

    Args:
        silent_s: for how many seconds the host and each other peer have been silent.
        after_s: how long a silence means nothing yet.
    """
    least_s = min(silent_s, default=0.0)
    if least_s < after_s:
        return ""
    return f"offline for {duration(least_s)}: no other peer and no host answers; trains on, counted later"


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
            f"apart from the run for {duration(now_s - self.since_s)}: the run is at round {self.host_index}, this peer at a round "
            f"{self.own_index} of its own; trains on, counted once it reaches a peer of the run; see `potluck doctor`"
        )


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
