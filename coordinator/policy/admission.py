"""The rule of admission: decides one Admit or Renew request, as a pure function of facts.

The shell (coordinator/admission/service.py) gathers the facts inside one ledger transaction, so an invite is used up exactly when a
peer is admitted with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from protocol.errors import PotluckError, RefusedError, RunOverError, TemporaryError, VersionError
from protocol.identity.names import peer_name
from protocol.ids import PROTOCOL_VERSION, PeerId
from protocol.tables import several

MAX_CLOCK_SKEW_S: Final = 300.0
"""Largest accepted clock difference, in seconds. Envelopes and certificates expire by the clock; five minutes is the usual
tolerance.
"""


@dataclass(frozen=True, slots=True)
class InviteFacts:
    """The ledger's facts about an invite, found by the hash of its secret."""

    uses: int
    max_uses: int
    expires_unix_s: int
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """Everything that the decision depends on.

    Attributes:
        peer_unix_s: the caller's clock, as it reports.
        invite: None if no invite has this secret.
        is_admitted: the peer was admitted earlier and returns with the same identity.
        num_live_peers: peers that reported recently, without the caller.
        max_peers: the most peers that the run takes at a time.
    """

    peer: PeerId
    protocol_version: int
    is_same_run: bool
    peer_unix_s: float
    invite: InviteFacts | None
    is_admitted: bool
    is_banned: bool
    is_run_over: bool
    num_live_peers: int
    max_peers: int


class Verdict(Enum):
    """The action for the shell."""

    ADMIT_WITH_INVITE = "admit with the invite"
    ADMIT_AGAIN = "admit again"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """A verdict, its reason in a sentence, and for a refusal the error for the peer."""

    verdict: Verdict
    reason: str
    error: PotluckError | None = None


def clock_error(peer_unix_s: float, now_unix_s: float) -> RefusedError | None:
    """The error for a clock that is off by more than MAX_CLOCK_SKEW_S, else None. Both arguments are seconds since 1970."""
    skew_s = peer_unix_s - now_unix_s
    # Written so that NaN is refused too.
    if abs(skew_s) <= MAX_CLOCK_SKEW_S:
        return None
    side = "ahead of" if skew_s > 0 else "behind"
    return RefusedError(
        f"this machine's clock is {abs(skew_s) / 60:.0f} minutes {side} the host's",
        f"a difference of at most {MAX_CLOCK_SKEW_S / 60:.0f} minutes",
        "set the clock (for example: sudo timedatectl set-ntp true) and join again",
    )


def _refuse(error: PotluckError) -> AdmissionDecision:
    return AdmissionDecision(Verdict.REFUSE, error.one_line(), error)


def request_error(facts: AdmissionFacts, now_unix_s: float) -> PotluckError | None:
    """The reason to refuse that holds for admission and renewal alike, else None. Places and invites are not looked at: whether the
    caller has one depends on who it is, which is not proven before its signature is checked.
    """
    if facts.protocol_version != PROTOCOL_VERSION:
        return VersionError(
            f"a peer with protocol version {facts.protocol_version}",
            f"version {PROTOCOL_VERSION}, which the host speaks",
            "install the same release of potluck on both sides",
        )
    if not facts.is_same_run:
        return RefusedError("a request for another run", "this host's run", "ask the host for a new invite")
    if error := clock_error(facts.peer_unix_s, now_unix_s):
        return error
    if facts.is_banned:
        return ban_error(facts.peer)
    if facts.is_run_over:
        return run_over_error()
    return None


def ban_error(peer: PeerId) -> RefusedError:
    """The answer to a banned peer."""
    return RefusedError(f"{peer_name(peer)} is banned from this run", "", f"ask the host about peer {peer}")


def run_over_error() -> RunOverError:
    """The answer to everybody who wants to take part in a run that is complete."""
    return RunOverError(
        "the run has ended",
        "a run in progress",
        "members get its model with: potluck checkpoint fetch; others ask the host for it",
    )


def invite_error(invite: InviteFacts | None, now_unix_s: float) -> PotluckError | None:
    """The reason why this invite admits nobody now, else None."""
    remedy = "ask the host for a new one (potluck invite)"
    if invite is None:
        return RefusedError("an invite that this host did not make", "an invite of this run", remedy)
    if invite.is_withdrawn:
        return RefusedError("an invite that the host has withdrawn", "an invite still valid", remedy)
    if now_unix_s >= invite.expires_unix_s:
        minutes = (now_unix_s - invite.expires_unix_s) / 60
        return RefusedError(f"the invite expired {minutes:.0f} minutes ago", "an invite still valid", remedy)
    if invite.uses >= invite.max_uses:
        return RefusedError(f"the invite was used {invite.uses} of {invite.max_uses} times", "an unused invite", remedy)
    return None


def decide_admission(facts: AdmissionFacts, now_unix_s: float) -> AdmissionDecision:
    """Admit or refuse. A peer that was admitted earlier needs no new invite and no free place: the same identity resumes."""
    if error := request_error(facts, now_unix_s):
        return _refuse(error)
    if facts.is_admitted:
        return AdmissionDecision(Verdict.ADMIT_AGAIN, "admitted before with the same identity")
    if facts.num_live_peers >= facts.max_peers:
        return _refuse(
            TemporaryError(
                f"the run is full, with {several(facts.num_live_peers, 'peer')}",
                f"fewer than {facts.max_peers}",
                "try again later",
            )
        )
    if error := invite_error(facts.invite, now_unix_s):
        return _refuse(error)
    return AdmissionDecision(Verdict.ADMIT_WITH_INVITE, "the invite is valid")


def decide_renewal(facts: AdmissionFacts, now_unix_s: float) -> AdmissionDecision:
    """Renew or refuse: as admission, without an invite, and only for a peer that was admitted."""
    if error := request_error(facts, now_unix_s):
        return _refuse(error)
    if not facts.is_admitted:
        return _refuse(RefusedError(f"peer {facts.peer} was never admitted", "an admitted peer", "join with an invite"))
    return AdmissionDecision(Verdict.ADMIT_AGAIN, "admitted before with the same identity")
