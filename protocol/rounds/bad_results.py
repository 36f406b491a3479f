"""Results that cannot be used: other bytes than their reducer named, or meaningless bytes (R10, R14 and R16).

Everybody agrees on whether bytes mean anything. So no honest peer acks a record that names meaningless bytes, and a quorum of acks
for it cannot exist. If a voter claims to have acked such a record, that decided nothing.

Rules: R10, R14, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from protocol.errors import RemoteProtocolError
from protocol.frozen import replace
from protocol.ids import Root, short
from protocol.rounds import attempt
from protocol.rounds.events import ResultRefused
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.state import RoundState, RoundStep


def names_useless(record: bytes, useless: frozenset[Root]) -> bool:
    """Whether a settled record names a result that is known to be meaningless."""
    if not useless:
        return False
    try:
        return any(part.result_hash in useless for part in decode_record(record).slices)
    except RemoteProtocolError:
        return False


def result_refused(state: RoundState, event: ResultRefused, now_s: float) -> RoundStep:
    """A reducer, possibly ourselves, gave a result that cannot be used: it gets no slice in our next attempts on this base. If we
    lead, its slice goes to another. If our record names the result already, the attempt ends, unless another peer acked it and so
    has the bytes.
    """
    found = f"the result of {short(event.reducer)} cannot be used: {event.why}"
    opened = state.open
    if event.base != state.link.commit or opened.committing is not None:
        return RoundStep(state, remark=f"{found}; its round is decided")
    useless = opened.useless | ({event.result_hash} if event.result_hash is not None else set())
    unfit = tuple(sorted({*opened.unfit, event.reducer}))
    opened = replace(opened, useless=useless, unfit=unfit)
    state, led, proposal = replace(state, open=opened), opened.leading, opened.proposal
    if led is None or proposal is None or event.ballot != proposal.ballot or event.ballot != led.ballot:
        return RoundStep(state, remark=f"{found}; it gets no slice of us")
    lost = [part for part in proposal.slices if part.reducer == event.reducer]
    if led.stage == "collecting" and lost:
        return attempt.give_away(state, led, proposal, lost, now_s, found)
    if not lost or led.acks.keys() - {event.reducer}:
        return RoundStep(state, remark=f"{found}; the attempt goes on")
    return attempt.failed(state, now_s, found, wait_s=0.0)
