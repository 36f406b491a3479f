"""A voter that its own signatures convict is out: its votes and its work count no more here, and everybody is told.

Rules: R13, R14 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.rounds.lineage.double_votes import conviction_of, double_voters
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.messages import Certificate, DoubleVote
from protocol.rounds.orders import Action, ReportDoubleVote, Send
from protocol.rounds.queries import is_gone
from protocol.rounds.state import RoundState, RoundStep


def accused(state: RoundState, sender: PeerId, message: DoubleVote) -> RoundStep:
    """Another peer shows two signatures of one voter."""
    found = convict(state, ((message.one, message.other),))
    if found.state is state:
        return RoundStep(state, remark=f"{short(sender)} shows what convicts nobody new")
    return found


def convict(state: RoundState, pairs: Iterable[tuple[bytes, bytes]]) -> RoundStep:
    """Expel each voter that a pair of its acks or claims convicts, keep the proof at the host, and tell the others once."""
    check, expelled = SignatureCheck(state.config.verifier, state.config.run_id), set(state.barred.expelled)
    orders: list[Action] = []
    for one, other in pairs:
        found = conviction_of(one, other, check)
        if found is None or found.voter in expelled or found.voter == state.config.me.peer:
            continue  # nobody expels itself: the others do
        voter = found.voter
        expelled.add(voter)
        reason = f"{short(voter)} {found.words}: it is out"
        told, me = DoubleVote(state.config.unit, one, other), state.config.me.peer
        others = tuple(peer for peer in sorted(state.peers) if peer not in (voter, me) and not is_gone(state, peer))
        orders += [ReportDoubleVote(voter, one, other, reason)]
        orders += [Send(others, told, reason)] if others else []
    if not orders:
        return RoundStep(state)
    reason = orders[0].reason
    return RoundStep(replace(state, barred=state.barred.expelling(*expelled)), tuple(orders), reason)


def convict_by(state: RoundState, certificate: Certificate, siblings: Iterable[Certificate]) -> RoundStep:
    """Look for voters of this certificate that also acked another record on its base."""
    check = SignatureCheck(state.config.verifier, state.config.run_id)
    pairs = [(one, other) for each in siblings for _, one, other in double_voters(certificate, each, check)]
    return convict(state, pairs) if pairs else RoundStep(state)
