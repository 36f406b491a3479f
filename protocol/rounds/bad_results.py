"""Results that cannot be used: headers that say what nobody signed, other bytes than their reducer named, or meaningless bytes (R10,
R14 and R16). And records that name those, or follow other settings than the run's.

A sum that is proven to be false is another matter: voters that had no proof may have acked a record that names it.

Everybody agrees on whether bytes mean anything. So no honest peer acks a record that names meaningless bytes, and a quorum of acks
for it cannot exist. If a voter claims to have acked such a record, that decided nothing.

Rules: R10, R14, R16, R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.frozen import replace
from protocol.identity.envelope import open_envelope
from protocol.ids import PeerId, Root, short
from protocol.kinds.codec_table import leaves_out
from protocol.rounds import attempt
from protocol.rounds.events import ResultRefused, SumProven, SumWithheld
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.disagreement_rules import all_disagreeing, disagreements, guard_problem
from protocol.rounds.lineage.record_rules import (
    ROUND_DOMAIN,
    SignatureCheck,
    member_of,
    record_problem,
    result_problem,
)
from protocol.rounds.lineage.rule_numbers import SIGNED
from protocol.rounds.messages.messages import FalseSum, Proposal, ResultHeader, ResultReady, Settle, SliceSpec
from protocol.rounds.messages.record import NO_SPINE, CommitRecord
from protocol.rounds.messages.wire import decode_body, decode_record
from protocol.rounds.orders import FetchSumProof, Send
from protocol.rounds.participants import without_slices
from protocol.rounds.queries import is_gone
from protocol.rounds.schedule.outer_rule import allowed_outer
from protocol.rounds.schedule.proposal import both_codecs
from protocol.rounds.state import RoundConfig, RoundState, RoundStep


class FalseResultError(RemoteProtocolError):
    """A result whose reducer signed what is not so; `part` is its slice."""

    def __init__(self, part: SliceSpec, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.part = part


def open_result(
    config: RoundConfig, proposal: Proposal, message: ResultReady, base: ChainLink | None = None
) -> ResultHeader:
    """The signed header of a slice's result, checked against the proposal; `base` is the commit that it builds on, where it is known.

    Raises:
        FalseResultError: its reducer counts somebody who takes no part, or what a member did not sign.
        RemoteProtocolError: another slice or attempt, or another's signature.
        VersionError: signed by another version of the protocol.
    """
    envelope = open_envelope(
        message.header, verifier=config.verifier, domain=ROUND_DOMAIN, run_id=config.run_id, now_unix_ms=None
    )
    header = decode_body(ResultHeader, envelope.payload)
    part = next((s for s in proposal.slices if s.first_chunk == header.first_chunk), None)
    if part is None or (part.reducer, part.stop_chunk) != (header.reducer, header.stop_chunk):
        raise RemoteProtocolError(f"a result of {short(header.reducer)} for another slice", "its own slice")
    if header.reducer != envelope.sender or (header.base, header.ballot) != (proposal.base, proposal.ballot):
        raise RemoteProtocolError(f"a result signed by {short(envelope.sender)}", "its reducer's, of this attempt")
    _require_true(config, proposal, part, header, base)
    return header


def _require_true(
    config: RoundConfig, proposal: Proposal, part: SliceSpec, header: ResultHeader, base: ChainLink | None
) -> None:
    peers = [entry.peer for entry in header.included]
    here = {m.peer: m for m in proposal.members}
    if len(set(peers)) < len(peers) or any(here.get(e.peer) != member_of(e) for e in header.included):
        raise FalseResultError(part, "a result that counts strangers, or somebody twice", "members, each once")
    problem = guard_problem(disagreements(header), config.sums.guard)
    if header.included and not problem:
        voters, rules = (None, 0) if base is None else (base.roster, base.rules)
        problem = result_problem(header, proposal, SignatureCheck(config.verifier, config.run_id), voters, rules)
    if problem:
        raise FalseResultError(part, problem, "what its contributors and its reducer signed")
    codec = proposal.result_codec or proposal.codec
    if header.lost_ppm and not leaves_out(codec):
        raise FalseResultError(
            part, f"a result in {codec} that leaves out {header.lost_ppm} millionths", "0: all is written"
        )


def false_result(state: RoundState, proposal: Proposal, error: FalseResultError, now_s: float) -> RoundStep:
    """A reducer signed a result that says what is not so. If we lead its attempt, its slice goes to another at once."""
    found = f"dropped a result of {short(error.part.reducer)}: {error.one_line()}"
    led = state.open.leading
    if led is None or led.stage != "collecting" or led.ballot != proposal.ballot:
        return RoundStep(state, (), found)
    state = without_slices(state, [error.part.reducer])
    return attempt.give_away(state, led, proposal, [error.part], now_s, found)


def unusable(state: RoundState, record: CommitRecord) -> str:
    """Why nobody can go on from this record on our base: other settings than the run's, or a meaningless result. Empty if one can."""
    config, codecs = state.config, both_codecs(record.codec, record.result_codec)
    expected_codecs = both_codecs(config.codec, config.result_codec)
    lineage = state.tree.behind(state.link.commit)
    outer = allowed_outer(record.outer, config.outer, config.momentum_from_tokens, lineage)
    if record.outer != outer or codecs != expected_codecs:
        found = f"refused a record with outer step {record.outer} and {codecs}"
        return f"{found}: not the run's, {outer} and {expected_codecs}"
    stagger, target = config.stagger, config.target
    fewest, most = stagger.shortest(target.fewest_tokens), stagger.longest(target.most_tokens)
    if not fewest <= record.next_target_tokens <= most:
        return (
            f"refused a record with {record.next_target_tokens} tokens for the next round; expected {fewest} to {most}"
        )
    if record.slices[-1].stop_chunk != state.config.num_chunks:
        return f"refused a record over {record.slices[-1].stop_chunk} chunks: the unit has {state.config.num_chunks}"
    if (record.spine == NO_SPINE) != state.config.is_spine:
        found, expected = ("with", "none") if state.config.is_spine else ("without", "one")
        return f"refused a record of {record.unit} {found} a spine commit; expected {expected}"
    unguarded = guard_problem(all_disagreeing(record.slices), config.sums.guard)
    if unguarded:
        return f"refused a record: {unguarded}"
    if any(part.result_hash in state.open.useless for part in record.slices):
        return "refused a record that names a result whose bytes mean nothing"
    return ""


def names_useless(record: bytes, useless: frozenset[Root]) -> bool:
    """Whether a settled record names a result that is known to be meaningless."""
    if not useless:
        return False
    try:
        return any(part.result_hash in useless for part in decode_record(record).slices)
    except RemoteProtocolError:
        return False


def may_have_been_acked(state: RoundState, record: bytes) -> bool:
    """Whether a voter that keeps the rules can have acked this record on our base, whatever goodbyes it knew. A peer that names
    another one in its promise is not believed: nobody could finish it.
    """
    try:
        link = link_after(state.link, record)
    except RemoteProtocolError:
        return False
    if link.record is None or link.record.rules < SIGNED or names_useless(record, state.open.useless):
        return False
    check = SignatureCheck(state.config.verifier, state.config.run_id)
    return not record_problem(state.link, link.record, check, state.link.roster)


# --- false sums (R27) ---------------------------------------------------------------------------------------------------------

MOST_OLD: Final = 64
"""A proof of a false sum on a base so many commits behind the head convicts nobody any more: its reducer may have followed the
arithmetic of an older release.
"""


def sum_accused(state: RoundState, sender: PeerId, message: FalseSum) -> RoundStep:
    """Another peer has a proof of a false sum: ask it for the proof."""
    who, config = short(message.reducer), state.config
    if message.unit != config.unit or message.reducer in state.barred.expelled:
        return RoundStep(state, remark=f"{short(sender)} accuses {who}, which convicts nobody new here")
    if message.reducer == config.me.peer:
        return RoundStep(state, remark=f"{short(sender)} accuses us of a false sum; the others judge that")
    if message.reducer not in state.peers and message.reducer not in state.link.roster:
        return RoundStep(state, remark=f"{short(sender)} accuses {who}, which is not known here")
    node = state.tree.nodes.get(message.base)
    if node is None or node.link.index < state.link.index - MOST_OLD:
        found = f"{short(sender)} accuses {who} of a sum on commit {short(message.base)}"
        return RoundStep(state, remark=f"{found}; expected one of the newest {MOST_OLD}")
    why = f"{short(sender)} says that {who} signed a false sum: its proof is looked at"
    return RoundStep(state, (FetchSumProof(sender, message, why),))


def _sum_proven(state: RoundState, event: SumProven, now_s: float) -> RoundStep:
    """A reducer's false sum is proven: nothing of it counts any more, no fresh record with its result is acked here, and the others
    are told once. If we lead, its slice goes to another.
    """
    notice, me = event.notice, state.config.me.peer
    if notice.reducer == me:
        return RoundStep(state, remark=f"a proof says that we {event.why}; the others judge that")
    is_new = notice.reducer not in state.barred.expelled
    false_sums = state.barred.false_sums | {notice.result_hash}
    state = replace(state, barred=replace(state.barred.expelling(notice.reducer), false_sums=false_sums))
    reason = f"{short(notice.reducer)} {event.why}: it is out"
    gathering = state.open.gathering
    if gathering is not None and _is_fresh_and_false(state, gathering):
        state = replace(state, open=replace(state.open, gathering=None))
    others = tuple(p for p in sorted(state.peers) if p not in (notice.reducer, me) and not is_gone(state, p))
    told = (Send(others, notice, reason),) if others and is_new and event.is_news else ()
    proposal = state.open.proposal
    if proposal is None or notice.base != state.link.commit:
        return RoundStep(state, told, reason)
    refused = result_refused(state, ResultRefused(notice.base, proposal.ballot, notice.reducer, event.why), now_s)
    return RoundStep(refused.state, (*told, *refused.actions), reason, refused.remark)


def _sum_withheld(state: RoundState, event: SumWithheld) -> RoundStep:
    """A reducer that shows nobody what it summed gets no slice of us for some rounds. It may also be unlucky: it keeps its vote."""
    if event.base != state.link.commit or event.reducer == state.config.me.peer:
        return RoundStep(state, remark=f"{short(event.reducer)} did not show a sum of a round that is over")
    remark = f"{short(event.reducer)} did not show its sum: {event.why}; it gets no slice of us for a while"
    return RoundStep(without_slices(state, [event.reducer]), remark=remark)


def false_sum_problem(state: RoundState, settle: Settle, record: CommitRecord | None) -> str:
    """Why a settled record is not acked for the sake of its sums; empty if it may be. A record that others may have acked in an
    earlier attempt has to be finished as it is, false sums and all (R16): what is decided stays, and the liar is out.
    """
    if record is None or record.ballot != settle.ballot:
        return ""
    false = next((part for part in record.slices if part.result_hash in state.barred.false_sums), None)
    if false is None:
        return ""
    return f"refused a record that names the sum of {short(false.reducer)}, which is proven to be false"


def _is_fresh_and_false(state: RoundState, settle: Settle) -> bool:
    try:
        return bool(false_sum_problem(state, settle, decode_record(settle.record)))
    except RemoteProtocolError:
        return False


def result_refused(state: RoundState, event: ResultRefused | SumProven | SumWithheld, now_s: float) -> RoundStep:
    """A reducer, possibly ourselves, gave a result that cannot be used: it gets no slice in our next attempts on this base. If we
    lead, its slice goes to another. If our record names the result already, the attempt ends, unless another peer acked it and so
    has the bytes. A reducer of a false sum is out for good.
    """
    if isinstance(event, SumProven):
        return _sum_proven(state, event, now_s)
    if isinstance(event, SumWithheld):
        return _sum_withheld(state, event)
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
