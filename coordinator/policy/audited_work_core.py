"""The word of auditors' verdicts on a contributor: passes make a stranger a member, and fails put a peer aside. Pure.

An auditor does a contributor's steps of a round again and signs the gap that it finds (peer/audits/work_audit_core.py). The gap of
honest work depends on the model and the text, so it is judged by the run's usual gap: the median over the work of keepers and members.
No verdict counts alone. An unusual machine fails now and then, and an auditor may lie.

Ten passes are those after which BOINC trusts a machine (https://boinc.berkeley.edu/trac/wiki/AdaptiveReplication).
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import CommitId, PeerId

FEWEST_GAPS: Final = 8
"""With fewer verdicts about keepers and members no gap is usual yet, and nothing passes or fails."""

LEAST_USUAL_GAP: Final = 0.2
"""Below it honest work and other work lie too close together to tell them apart by a single verdict."""

PASS_SHARE: Final = 0.5
"""Work passes if its gap is above this share of the usual one (tests/benchmarks/LOG.md, "Work done again")."""

LEAST_LENGTH: Final = 0.55
"""A contribution shorter than this part of the redone delta was made in fewer steps than it claims. As `PASS_SHARE` by measurement."""

MEMBER_PASSES: Final = 10
MEMBER_AUDITORS: Final = 3
"""So many passes, found by so many auditors, make a member."""

FAILS: Final = 2
"""So many fails, found by so many auditors, put a peer aside."""

REMEMBERED: Final = 10
"""A peer's newest verdicts, among which its fails count: one bad round in many is an accident."""

ASIDE_S: Final = 86_400.0
"""A peer that was put aside gets no new credential for a day."""


@dataclass(frozen=True, slots=True)
class KnownVerdict:
    """A verdict that the host keeps.

    Attributes:
        commit: the commit that counts the work. An auditor has one verdict for each contributor and commit.
        gap: within [-2, 2]. length_ratio: at least 0.
        unix_s: when the host got it.
    """

    auditor: PeerId
    contributor: PeerId
    commit: CommitId
    gap: float
    length_ratio: float
    unix_s: float


@dataclass(frozen=True, slots=True)
class AuditedWork:
    """A contributor's record with auditors.

    Attributes:
        num_passes: since it was last put aside.
        auditors: those that found them.
        num_fails: among its newest verdicts.
        num_aside: how often it was put aside.
        aside_until_unix_s: until then it gets no new credential; 0 if it never was put aside.
    """

    num_passes: int = 0
    auditors: frozenset[PeerId] = frozenset()
    num_fails: int = 0
    num_aside: int = 0
    aside_until_unix_s: float = 0.0

    @property
    def makes_member(self) -> bool:
        """Whether the passes make a stranger a member."""
        return self.num_passes >= MEMBER_PASSES and len(self.auditors) >= MEMBER_AUDITORS

    @property
    def is_doubted(self) -> bool:
        """Whether the peer was put aside and has not earned its standing again since."""
        return self.num_aside > 0 and not self.makes_member


NOT_AUDITED: Final = AuditedWork()


@dataclass
class _Counting:
    passes: int = 0
    auditors: set[PeerId] = field(default_factory=set)
    newest: list[tuple[PeerId, bool]] = field(default_factory=list)
    num_aside: int = 0
    until_unix_s: float = 0.0

    def add(self, verdict: KnownVerdict, *, is_pass: bool) -> None:
        self.newest = [*self.newest, (verdict.auditor, is_pass)][-REMEMBERED:]
        if is_pass:
            self.passes += 1
            self.auditors.add(verdict.auditor)
            return
        failing = [auditor for auditor, passed in self.newest if not passed]
        if len(failing) >= FAILS and len(set(failing)) >= FAILS:
            self.passes, self.auditors, self.newest = 0, set(), []
            self.num_aside += 1
            self.until_unix_s = verdict.unix_s + ASIDE_S


def usual_gap(verdicts: Iterable[KnownVerdict], trusted: Collection[PeerId]) -> float | None:
    """The run's usual gap; None while it cannot be told, or is too small to judge by.

    Args:
        trusted: keepers and members. Strangers cannot move it.
    """
    gaps = [verdict.gap for verdict in verdicts if verdict.contributor in trusted]
    if len(gaps) < FEWEST_GAPS:
        return None
    found = statistics.median(gaps)
    return found if found >= LEAST_USUAL_GAP else None


def passes(verdict: KnownVerdict, usual: float) -> bool:
    """Whether work passes, by the run's usual gap, which is above 0."""
    return verdict.gap > PASS_SHARE * usual and verdict.length_ratio >= LEAST_LENGTH


def audited_work(verdicts: Sequence[KnownVerdict], usual: float | None) -> AuditedWork:
    """The record of one contributor with auditors.

    Args:
        verdicts: those about it, by auditors other than itself, the oldest first.
        usual: as of `usual_gap`; None counts nothing.
    """
    if usual is None:
        return NOT_AUDITED
    counting = _Counting()
    for verdict in verdicts:
        counting.add(verdict, is_pass=passes(verdict, usual))
    num_fails = sum(not is_pass for _, is_pass in counting.newest)
    auditors = frozenset(counting.auditors)
    return AuditedWork(counting.passes, auditors, num_fails, counting.num_aside, counting.until_unix_s)
