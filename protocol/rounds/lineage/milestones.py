"""Milestones: commits from which a lineage may begin as from the genesis, because the host signed them (R26). Pure.

The host signs one in MILESTONE_EVERY commits, once SETTLED commits follow it, and nothing but commits that it verified itself. So
peers need not keep certificates for ever, and a newcomer verifies those since the newest milestone only. A milestone decides nothing:
which lineage is followed, and what is voted on, follows from certificates. A peer that has commits never goes back because of one.

An envelope of domain MILESTONE_DOMAIN holds a `Milestone` (messages/start.py); its sequence is the commit's index.

Rules: R22, R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import Signer
from protocol.ids import CommitId, Root, RunId, short
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.start import Milestone
from protocol.rounds.messages.wire import decode_body, encode_body

MILESTONE_DOMAIN: Final = "milestone"

MILESTONE_EVERY: Final = 256
"""Commits from one milestone to the next. A newcomer verifies at most these and SETTLED more: a few seconds of processor time."""

SETTLED: Final = 64
"""Commits of quorums after a milestone when it is signed. Another lineage could only be followed from there on if most voters
acked two commits on one base (R22).
"""

MAX_MILESTONE_BYTES: Final = 1 << 18
"""A milestone in its envelope; a record of the most members, all of them new, is half of that."""

MAX_HELD: Final = 64
"""Newest milestones of a unit that are kept where no lineage has come so far that they are forgotten."""

CommitAt = Callable[[int], CommitId | None]
"""The commit of a lineage at an index; None where it is not known."""


@dataclass(frozen=True, slots=True)
class SignedMilestone:
    """A milestone whose signature was checked: its link, the state root that a later commit attests (empty for none), its envelope."""

    link: ChainLink
    state_root: Root
    sealed: bytes


def seal_milestone(host: Signer, run_id: RunId, milestone: Milestone) -> bytes:
    """The milestone in the host's envelope.

    Raises:
        RemoteProtocolError: its record cannot be read.
    """
    index = link_of(milestone.record).index
    return seal(host, MILESTONE_DOMAIN, run_id, index, NEVER_MS, encode_body(milestone))


def open_milestone(
    sealed: bytes, *, check: SignatureCheck, host_public_key: bytes, genesis: CommitId
) -> SignedMilestone:
    """Check a milestone of the run that began with `genesis`.

    Raises:
        RemoteProtocolError: malformed, of another run or start, or not signed by this host.
        VersionError: signed by a version that is not read any more.
    """
    if len(sealed) > MAX_MILESTONE_BYTES:
        raise RemoteProtocolError(f"a milestone of {len(sealed)} bytes", f"at most {MAX_MILESTONE_BYTES}")
    envelope = open_envelope(
        sealed, verifier=check.verifier, domain=MILESTONE_DOMAIN, run_id=check.run_id, now_unix_ms=None
    )
    if envelope.public_key != host_public_key:
        raise RemoteProtocolError(
            f"a milestone that {short(envelope.sender)} signed", "one that the run's host signed", "it is ignored"
        )
    milestone = decode_body(Milestone, envelope.payload)
    link = link_of(milestone.record)
    if milestone.genesis != genesis:
        found = f"a milestone of a run with start {short(milestone.genesis)}"
        raise RemoteProtocolError(found, f"this run's start {short(genesis)}", "it is ignored")
    if not link.index or link.index != envelope.sequence:
        raise RemoteProtocolError(f"a milestone numbered {envelope.sequence} of round {link.index}", "one number")
    return SignedMilestone(link, milestone.state_root, sealed)


@dataclass(frozen=True, slots=True)
class MilestoneBook:
    """The milestones of one unit that a peer keeps, oldest first."""

    held: tuple[SignedMilestone, ...] = ()

    @property
    def newest(self) -> SignedMilestone | None:
        """The newest one; None without any."""
        return self.held[-1] if self.held else None

    def with_one(self, offered: SignedMilestone, commit_at: CommitAt) -> MilestoneBook:
        """The book with one more; the same book where it is known already.

        Args:
            commit_at: of the lineage that our own certificates prove.

        Raises:
            RemoteProtocolError: it is older than one that is held, or contradicts one, or our own certificates.
        """
        newest, link = self.newest, offered.link
        known = next((each.link for each in self.held if each.link.index == link.index), None)
        if known == link:
            return self
        own = known.commit if known is not None else commit_at(link.index)
        if own is not None and own != link.commit:
            proof = "an earlier milestone says" if known is not None else "our certificates say"
            raise RemoteProtocolError(
                f"a milestone that names commit {short(link.commit)} as round {link.index} of {link.unit}",
                f"commit {short(own)}, as {proof}",
                "it is ignored; tell the host's owner, and keep this line",
            )
        if newest is not None and link.index < newest.link.index:
            raise RemoteProtocolError(
                f"an older milestone, of round {link.index} of {link.unit}",
                f"one after round {newest.link.index}, which is held",
                "it is ignored; the host may have been restored from an old copy",
            )
        return MilestoneBook((*self.held, offered)[-MAX_HELD:])

    def behind(self, index: int, commit_at: CommitAt) -> SignedMilestone | None:
        """The newest one on our lineage that is not after `index`."""
        found = (each for each in reversed(self.held) if each.link.index <= index)
        return next((each for each in found if commit_at(each.link.index) == each.link.commit), None)

    def since(self, index: int) -> MilestoneBook:
        """The book without those before `index`."""
        held = tuple(each for each in self.held if each.link.index >= index)
        return self if len(held) == len(self.held) else MilestoneBook(held)
