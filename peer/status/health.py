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
from averaging.storage.full_disk import FULL_BYTES, full_disk_sentence, is_of_full_disk, still_refuses
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.round_row import RECENT_ROUNDS
from protocol.tables import duration

SHOWN_S: Final = 3600.0
"""A refused write is shown for this long. It is retried with the next round, which may be an hour away."""


@dataclass(frozen=True, slots=True)
class DiskSight:
    """The disk of the state folder as it was last seen.

    Attributes:
        folder: the state folder.
        needed_bytes: the room that its states, updates and log may still take.
        free_bytes: its free room; None if it is not known.
    """

    folder: Path
    needed_bytes: int = 0
    free_bytes: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether not even a log can grow on it."""
        return self.free_bytes is not None and self.free_bytes < FULL_BYTES

    @property
    def has_room(self) -> bool:
        """Whether all that may still come fits."""
        return self.free_bytes is not None and self.free_bytes >= max(FULL_BYTES, self.needed_bytes)


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

    def sentence(self, refused: Sequence[str], now_s: float, disk: DiskSight) -> str:
        """All problems in one line, empty if there are none. A full disk is told once, however many writes it refused.

        Args:
            refused: per unit, why the last generation was not written.
            now_s: monotonic seconds.
            disk: the disk of the state folder as it was last seen.
        """
        ago_s = now_s - self.refused_s
        is_new = self.refusal and ago_s < SHOWN_S
        if is_of_full_disk(self.refusal):
            is_new = still_refuses(self.refusal, ago_s, has_room=disk.has_room)
        reasons = dict.fromkeys([*([self.refusal] if is_new else []), *filter(None, refused)])
        others = [f"the disk refuses: {reason}" for reason in reasons if not is_of_full_disk(reason)]
        is_full = disk.is_full or len(others) < len(reasons)
        full = [full_disk_sentence(disk.folder, disk.needed_bytes, disk.free_bytes)] if is_full else []
        return "; ".join(filter(None, [*full, self.closed_ports, *others, self.differs]))


MOST_LEFT_OUT: Final = 0.05
"""Share of its work above which a peer is told that it disagrees with the others. By chance far less of an honest peer's does."""


def disagreement_sentence(left_out: float, num_rounds: int) -> str:
    """The note for an owner whose peer's work disagrees with most others'; empty while there is nothing to say.

    Args:
        left_out: share of this peer's work in its newest rounds that was left out, 0 to 1.
        num_rounds: of these rounds that counted it.
    """
    if left_out <= MOST_LEFT_OUT or num_rounds < RECENT_ROUNDS:
        return ""
    return (
        f"{left_out:.0%} of this peer's work in its last {num_rounds} rounds disagreed with most others' and does not count: "
        "its card or memory may compute wrongly; see `potluck doctor`, or try another card or --precision"
    )


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
    """Since when the host's head has not been on our lineage, None while it is on it. The indexes and the host's head are those of the
    host's last answer.
    """

    since_s: float | None = None
    host_index: int = 0
    own_index: int = 0
    host_head: CommitId | None = None

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
    """The next value after an answer of the host. `links` is our lineage from its first commit, or empty. A head of the host's that
    was not here at its last answer and came since shows that we follow it, a little later.
    """
    if _is_on(links, host_head, host_index):
        return LineageDivergence()
    is_apart_since = before.since_s is not None and not _is_on(links, before.host_head, before.host_index)
    since_s = before.since_s if is_apart_since else now_s
    return LineageDivergence(since_s, host_index, links[-1].index, host_head)


def _is_on(links: Sequence[ChainLink], head: CommitId | None, index: int) -> bool:
    """Whether a head is on our lineage; also if we know none yet."""
    place = index - links[0].index if links else 0
    return not links or (0 <= place < len(links) and links[place].commit == head)
