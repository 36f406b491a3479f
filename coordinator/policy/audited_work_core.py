"""The word of auditors' verdicts on a contributor: passes make a stranger a member, and fails put a peer aside. Pure.

An auditor does a contributor's steps of a round again and signs the gap (peer/audits/work_audit_core.py) and the length that it finds.
Both make the fit (`fit_of`). That of honest work depends on the model and the text, so it is judged by the run's usual fit over the
work of keepers and members. Each auditor has one voice in that, however many verdicts it signs. No verdict counts alone. An unusual
machine fails now and then, and an auditor may lie.

A contributor tells which steps it took. One that tells most auditors none that can be taken again gets no standing from its work: it
could escape audits for ever. Nobody can prove that it told them, so a few auditors that lie about it must not be enough.

Ten passes are those after which BOINC trusts a machine (https://boinc.berkeley.edu/trac/wiki/AdaptiveReplication).
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.host.work_rules import LEAST_LENGTH, PASS_SHARE, fit_of
from protocol.ids import CommitId, PeerId

FEWEST_OF_ONE: Final = 2
"""An auditor with fewer verdicts about keepers and members has no voice in the usual fit: one verdict may err."""

FEWEST_FITS: Final = 8
"""With fewer verdicts about keepers and members no fit is usual yet, and nothing passes or fails."""

LEAST_USUAL_FIT: Final = 0.2
"""Below it honest work and other work lie too close together to tell them apart by a single verdict."""

MEMBER_PASSES: Final = 10
MEMBER_AUDITORS: Final = 3
"""So many passes, found by so many auditors, make a member."""

FAILS: Final = 2
"""So many fails, found by so many auditors, put a peer aside."""

REMEMBERED: Final = 10
"""A peer's newest verdicts, among which its fails count: one bad round in many is an accident."""

VOICE_S: Final = 30 * 86_400.0
"""An auditor whose newest verdict on a peer is so much older than the newest of all says nothing of whether it tells its steps now."""

ASIDE_S: Final = 86_400.0
"""A peer that was put aside gets no new credential for a day."""


@dataclass(frozen=True, slots=True)
class KnownVerdict:
    """A verdict that the host keeps.

    Attributes:
        commit: the commit that counts the work. An auditor has one verdict for each contributor and commit.
        gap: within [-2, 2]. length_ratio: at least 0.
        unix_s: when the host got it.
        is_untold: the contributor told no steps that the auditor could take again; the numbers say nothing then.
    """

    auditor: PeerId
    contributor: PeerId
    commit: CommitId
    gap: float
    length_ratio: float
    unix_s: float
    is_untold: bool = False

    @property
    def fit(self) -> float:
        """How well the work fits what was redone."""
        return fit_of(self.gap, self.length_ratio)


@dataclass(frozen=True, slots=True)
class AuditedWork:
    """A contributor's record with auditors.

    Attributes:
        num_passes: since it was last put aside.
        auditors: those that found them.
        num_fails: among its newest verdicts.
        num_aside: how often it was put aside.
        aside_until_unix_s: until then it gets no new credential; 0 if it never was put aside.
        num_untold: among its newest verdicts, those of auditors that it told no steps which they could take again.
        tells_nothing: most auditors, FAILS of them at least, found so in most of their newest verdicts.
    """

    num_passes: int = 0
    auditors: frozenset[PeerId] = frozenset()
    num_fails: int = 0
    num_aside: int = 0
    aside_until_unix_s: float = 0.0
    num_untold: int = 0
    tells_nothing: bool = False

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
    newest: list[tuple[PeerId, bool | None]] = field(default_factory=list)
    """Auditors and whether the work passed; None where no steps were told."""

    by_auditor: dict[PeerId, list[bool]] = field(default_factory=dict)
    """Whether steps were told, in the newest verdicts of each auditor."""

    heard_unix_s: dict[PeerId, float] = field(default_factory=dict)
    """When each auditor's newest verdict came."""

    num_aside: int = 0
    until_unix_s: float = 0.0

    def add(self, verdict: KnownVerdict, usual: float | None) -> None:
        if usual is None or verdict.is_untold:
            self._remember(verdict, None if verdict.is_untold else True)
            return
        is_pass = passes(verdict, usual)
        self._remember(verdict, is_pass)
        if is_pass:
            self.passes += 1
            self.auditors.add(verdict.auditor)
            return
        failing = self._said(False)
        if len(failing) >= FAILS and len(set(failing)) >= FAILS:
            self.passes, self.auditors, self.newest = 0, set(), []
            self.num_aside += 1
            self.until_unix_s = verdict.unix_s + ASIDE_S

    def _remember(self, verdict: KnownVerdict, passed: bool | None) -> None:
        auditor = verdict.auditor
        self.heard_unix_s[auditor] = verdict.unix_s
        self.newest = [*self.newest, (auditor, passed)][-REMEMBERED:]
        self.by_auditor[auditor] = [*self.by_auditor.get(auditor, []), passed is not None][-REMEMBERED:]

    def _said(self, passed: bool | None) -> list[PeerId]:
        return [auditor for auditor, found in self.newest if found is passed]

    def outcome(self) -> AuditedWork:
        num_untold, num_fails = len(self._said(None)), len(self._said(False))
        since_unix_s = max(self.heard_unix_s.values(), default=0.0) - VOICE_S
        voices = [told for auditor, told in self.by_auditor.items() if self.heard_unix_s[auditor] >= since_unix_s]
        num_silent = sum(2 * sum(told) < len(told) for told in voices)
        tells_nothing = num_silent >= FAILS and 2 * num_silent > len(voices)
        found = AuditedWork(self.passes, frozenset(self.auditors), num_fails, self.num_aside, self.until_unix_s)
        return replace(found, num_untold=num_untold, tells_nothing=tells_nothing)


def usual_fit(verdicts: Iterable[KnownVerdict], trusted: Collection[PeerId]) -> float | None:
    """The run's usual fit: the lower median over auditors of the median that each of them found. None while it cannot be told, or is
    too small to judge by.

    Args:
        trusted: keepers and members. Strangers cannot move it, and one auditor of three cannot either.
    """
    fits = dict[PeerId, list[float]]()
    for verdict in verdicts:
        if verdict.contributor in trusted and not verdict.is_untold:
            fits.setdefault(verdict.auditor, []).append(verdict.fit)
    if sum(map(len, fits.values())) < FEWEST_FITS:
        return None
    voices = [statistics.median(each) for each in fits.values() if len(each) >= FEWEST_OF_ONE]
    if not voices:
        return None
    found = statistics.median_low(voices)
    return found if found >= LEAST_USUAL_FIT else None


def passes(verdict: KnownVerdict, usual: float) -> bool:
    """Whether work passes, by the run's usual fit, which is above 0."""
    return verdict.fit > PASS_SHARE * usual and verdict.length_ratio >= LEAST_LENGTH


def audited_work(verdicts: Sequence[KnownVerdict], usual: float | None) -> AuditedWork:
    """The record of one contributor with auditors.

    Args:
        verdicts: those about it, by auditors other than itself, the oldest first.
        usual: as of `usual_fit`; with None nothing passes or fails.
    """
    counting = _Counting()
    for verdict in verdicts:
        counting.add(verdict, usual)
    return counting.outcome()
