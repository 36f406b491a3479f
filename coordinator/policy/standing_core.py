"""The standing of peers that came by the open door: counted work over some days, or work that auditors did again, makes a stranger a
member.

Only a new credential changes a standing, so it is decided when one is asked for. Keepers are made by invites alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.policy.audited_work_core import MEMBER_PASSES, NOT_AUDITED, AuditedWork
from protocol.identity.standing import PeerStanding


@dataclass(frozen=True, slots=True)
class StandingRules:
    """The numbers of one run.

    Attributes:
        member_days: days of counted work that make a member.
        member_day_tokens: credited tokens that make a day count.
        kept_percent: the least share of a peer's work that reducers kept, 0 to 100, over all of these days.
    """

    member_days: int
    member_day_tokens: int
    kept_percent: int


@dataclass(frozen=True, slots=True)
class WorkDay:
    """A peer's work on one day (UTC, days since 1970): tokens that were credited, of those that it brought under the weight cap."""

    day: int
    credited_tokens: int
    brought_tokens: int


@dataclass(frozen=True, slots=True)
class PeerTrust:
    """The run's trust in a peer, for screens."""

    standing: PeerStanding = PeerStanding.KEEPER
    audited: AuditedWork = NOT_AUDITED

    @property
    def reason(self) -> str:
        """Why it stands so, in words."""
        if self.standing is PeerStanding.KEEPER:
            return "it came with an invite"
        if self.audited.is_doubted:
            return "auditors did its work again and found other work"
        if self.audited.tells_nothing:
            return (
                "auditors asked which steps it took, and it told none that they could take again; a peer of several replicas"
                " needs an invite"
            )
        if self.standing is PeerStanding.MEMBER:
            return (
                "its work passed when done again" if self.audited.makes_member else "its work was counted for some days"
            )
        passes = f"; {self.audited.num_passes} of {MEMBER_PASSES} passes by auditors" if self.audited.num_passes else ""
        return f"it came by the open door, and its work was not yet counted on enough days{passes}"

    @property
    def row(self) -> dict[str, object]:
        """The part of a peer's row in JSON that tells its standing."""
        passed, failed = self.audited.num_passes, self.audited.num_fails
        words = {"standing": self.standing.word, "standing_reason": self.reason}
        return {**words, "audits_passed": passed, "audits_failed": failed, "audits_untold": self.audited.num_untold}


KEEPERS_TRUST: Final = PeerTrust()


def standing_after(
    standing: PeerStanding, days: Sequence[WorkDay], rules: StandingRules, audited: AuditedWork = NOT_AUDITED
) -> PeerStanding:
    """The standing of a peer with this work. A member whose newest days are below the kept share is a stranger again, and so is one
    that auditors put aside, or that tells them none of its steps.

    Args:
        days: all days on which work of the peer was counted, the oldest first.
        audited: the findings of auditors.
    """
    if standing is PeerStanding.KEEPER:
        return standing
    if audited.is_doubted or audited.tells_nothing:
        return PeerStanding.STRANGER
    full = [day for day in days if day.credited_tokens >= rules.member_day_tokens]
    newest = days[-rules.member_days :]
    is_kept = kept_percent(newest) >= rules.kept_percent
    is_known = len(full) >= rules.member_days or audited.makes_member
    return PeerStanding.MEMBER if is_known and is_kept else PeerStanding.STRANGER


def kept_percent(days: Sequence[WorkDay]) -> float:
    """The share of the work that was credited, in percent; 0 without any work."""
    brought = sum(day.brought_tokens for day in days)
    return 100.0 * sum(day.credited_tokens for day in days) / brought if brought else 0.0
