"""Members that their own signatures convict: voters of two that contradict each other, reducers of a false sum. They are out at once,
also while the host is away, and the host gets the proofs.

Proofs of false sums stay on disk (averaging/rounds/audit/sum_proofs.py). Of the others nothing is saved: a process that starts again
hears of these voters from the host's bans, or finds the proofs again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from averaging.rounds.lineage.round_reports import RoundReport, SumConvicted, SumNotShown, SumsAudited, VoterConvicted
from protocol.errors import RemoteProtocolError
from protocol.host.reports import MAX_DOUBLE_VOTES, MAX_FALSE_SUMS, AckPair, Proofs
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.messages.messages import FalseSum

log = structlog.get_logger()

MAX_CONVICTED: Final = 64
"""Voters that are remembered: the most that a roster can have."""


def _expels_nobody(_: Collection[PeerId]) -> None: ...


@dataclass
class ConvictedVoters:
    """The convicted members that this process knows.

    `expel` is called once with each of them, so that it is refused from then on. `waiting` are the proofs that the host lacks.
    `num_audited` chunks of others' sums were computed again here, from `audited_bytes` of others, and `num_not_shown` could not be.
    """

    me: PeerId
    expel: Callable[[Collection[PeerId]], None] = _expels_nobody
    proofs: dict[PeerId, AckPair | FalseSum] = field(default_factory=dict)
    waiting: list[AckPair | FalseSum] = field(default_factory=list)
    num_audited: int = 0
    audited_bytes: int = 0
    num_not_shown: int = 0

    def take(self, report: RoundReport) -> bool:
        """Note a report from the rounds of any unit. Returns whether it convicts a member that was not known as such."""
        match report:
            case VoterConvicted():
                return self._take_voter(report)
            case SumConvicted():
                reason = f"it {report.words}; it is out, and the host hears of it"
                return self._convict(report.notice.reducer, report.notice, "reducer_convicted", reason)
            case SumsAudited():
                self.num_audited += report.num_chunks
                self.audited_bytes += report.num_bytes
            case SumNotShown():
                self.num_not_shown += 1
            case _:
                pass
        return False

    def _take_voter(self, report: VoterConvicted) -> bool:
        if report.voter in self.proofs:
            return False
        try:
            proof = AckPair(report.one, report.other)
        except RemoteProtocolError as error:
            log.warning("proof_not_kept", reason=error.one_line())
            return False
        reason = "two things that it signed in one round contradict each other; it is out, and the host hears of it"
        return self._convict(report.voter, proof, "voter_convicted", reason)

    def _convict(self, member: PeerId, proof: AckPair | FalseSum, event: str, reason: str) -> bool:
        if member in self.proofs or len(self.proofs) >= MAX_CONVICTED:
            return False
        self.proofs[member] = proof
        self.waiting.append(proof)
        log.warning(event, peer=peer_name(member), reason=reason)
        if member != self.me:
            self.expel((member,))
        return True

    @property
    def next_for_host(self) -> Proofs:
        """The proofs of the next report."""
        pairs = [proof for proof in self.waiting if isinstance(proof, AckPair)]
        sums = [proof for proof in self.waiting if isinstance(proof, FalseSum)]
        return Proofs(tuple(pairs[:MAX_DOUBLE_VOTES]), tuple(sums[:MAX_FALSE_SUMS]))

    def host_has(self, proofs: Proofs) -> None:
        """The host took these proofs."""
        taken = (*proofs.double_votes, *proofs.false_sums)
        self.waiting[:] = [proof for proof in self.waiting if proof not in taken]

    @property
    def sentence(self) -> str:
        """The convicted members in one line; empty if there are none."""
        voters = [peer for peer, proof in self.proofs.items() if isinstance(proof, AckPair)]
        reducers = [peer for peer, proof in self.proofs.items() if isinstance(proof, FalseSum)]
        said = (("signed what contradicts itself", voters), ("signed false sums", reducers))
        return "; ".join(f"{what} and are out: {_named(peers)}" for what, peers in said if peers)


def _named(peers: Sequence[PeerId]) -> str:
    names = ", ".join(peer_name(peer) for peer in peers[:3])
    return f"{names} and {len(peers) - 3} more" if len(peers) > 3 else names
