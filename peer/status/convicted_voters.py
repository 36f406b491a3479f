"""Voters that two of their own signatures convict. They are out at once, also while the host is away, and the host gets the proofs.

Nothing of this is saved. A process that starts again hears of them from the host's bans, or finds the proofs again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import structlog

from averaging.rounds.lineage.round_reports import RoundReport, VoterConvicted
from protocol.errors import RemoteProtocolError
from protocol.host.reports import MAX_DOUBLE_VOTES, AckPair
from protocol.identity.names import peer_name
from protocol.ids import PeerId

log = structlog.get_logger()

MAX_CONVICTED: Final = 64
"""Voters that are remembered: the most that a roster can have."""


def _expels_nobody(_: Collection[PeerId]) -> None: ...


@dataclass
class ConvictedVoters:
    """The convicted voters that this process knows.

    `expel` is called once with each of them, so that it is refused from then on. `waiting` are the proofs that the host lacks.
    """

    me: PeerId
    expel: Callable[[Collection[PeerId]], None] = _expels_nobody
    proofs: dict[PeerId, AckPair] = field(default_factory=dict)
    waiting: list[AckPair] = field(default_factory=list)

    def take(self, report: RoundReport) -> bool:
        """Note a report from the rounds of any unit. Returns whether it convicts a voter that was not known as such."""
        if not isinstance(report, VoterConvicted) or report.voter in self.proofs or len(self.proofs) >= MAX_CONVICTED:
            return False
        try:
            proof = AckPair(report.one, report.other)
        except RemoteProtocolError as error:
            log.warning("proof_not_kept", reason=error.one_line())
            return False
        self.proofs[report.voter] = proof
        self.waiting.append(proof)
        reason = "two things that it signed in one round contradict each other; it is out, and the host hears of it"
        log.warning("voter_convicted", peer=peer_name(report.voter), reason=reason)
        if report.voter != self.me:
            self.expel((report.voter,))
        return True

    @property
    def next_for_host(self) -> tuple[AckPair, ...]:
        """The proofs of the next report."""
        return tuple(self.waiting[:MAX_DOUBLE_VOTES])

    def host_has(self, proofs: Collection[AckPair]) -> None:
        """The host took these proofs."""
        self.waiting[:] = [proof for proof in self.waiting if proof not in proofs]

    @property
    def sentence(self) -> str:
        """The convicted voters in one line; empty if there are none."""
        if not self.proofs:
            return ""
        names = ", ".join(peer_name(peer) for peer in list(self.proofs)[:3])
        others = f" and {len(self.proofs) - 3} more" if len(self.proofs) > 3 else ""
        return f"signed what contradicts itself and are out: {names}{others}"
