"""A member's votes: acks of settled records, promises to peers that take over, opinions before that, and its goodbye.

Acks, promises and goodbyes are durable before they are sent. A pre-vote binds nobody and is not written down. A promise may name an
ack of the promised ballot that is still on its way to the disk: its leader needs no more promises.

Rules: R6, R13, R14, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.frozen import replace
from protocol.ids import CommitId, PeerId, short
from protocol.rounds import attempt, leading
from protocol.rounds.events import AckLogged, BytesHeld, LeaveLogged, PromiseLogged
from protocol.rounds.lineage.chain import ChainLink, link_after
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.messages.messages import (
    LAST_ATTEMPT,
    NO_SPINE,
    Ack,
    AckedRecord,
    Ballot,
    Leave,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    Settle,
)
from protocol.rounds.orders import Action, GatherBytes, LogAck, LogLeave, LogPromise, Send, SendHeartbeat
from protocol.rounds.proposal import both_codecs
from protocol.rounds.queries import is_gone, is_suspected, may_be_lone, own_heartbeat
from protocol.rounds.schedule.outer_rule import outer_of_round
from protocol.rounds.state import PendingPreVote, RoundState, RoundStep

MAX_ASKED = 64
"""Pre-votes that wait for a sign of the opener; one for each member that may ask."""

NOTICED_WITHIN_S: Final = 0.3
"""A dead leader is mostly noticed by then by a peer that waits for it. A goodbye must still be out within half a second."""


# --- acks ---------------------------------------------------------------------------------------------------------------------


def settled(state: RoundState, sender: PeerId, settle: Settle, now_s: float) -> RoundStep:
    """A settled record came: gather its bytes before anything is acked (R14)."""
    opened = state.open
    refused = _why_not_settled(state, sender, settle)
    if refused:
        return RoundStep(state, remark=refused)
    if opened.promised is not None and settle.ballot < opened.promised:
        return RoundStep(state, (refusal(sender, settle, opened.promised),))
    try:
        link = link_after(state.link, settle.record)
    except RemoteProtocolError as error:
        return RoundStep(state, remark=f"refused a settled record of {short(sender)}: {error.one_line()}")
    acked = opened.acked_lone if link.is_lone else opened.acked
    if acked is not None and acked.ballot == settle.ballot:
        if acked.record != settle.record:  # a ballot has one record (R13)
            return RoundStep(state, remark=f"{short(sender)} settled two records in one ballot; the first stands")
        # written again before it is sent again: a full disk may have refused it the first time
        why = f"{short(sender)} asks again for the ack of attempt {settle.ballot.attempt}"
        return RoundStep(state, (LogAck(settle.base, settle.ballot, settle.record, link.commit, link.is_lone, why),))
    if opened.gathering is not None and settle.ballot <= opened.gathering.ballot:
        gathering = f"the bytes of attempt {opened.gathering.ballot.attempt} are being gathered"
        remark = f"{short(sender)} settled attempt {settle.ballot.attempt}, but {gathering}; expected a higher one"
        return RoundStep(state, remark=remark)
    problem = _why_not_ack(state, link, now_s)
    if problem:
        return RoundStep(state, (), problem)
    state = replace(state, open=replace(opened, gathering=settle))
    why = f"attempt {settle.ballot.attempt} of round {link.index} is settled: its bytes come to our disk before our ack"
    return RoundStep(state, (GatherBytes(settle, why),))


def _why_not_settled(state: RoundState, sender: PeerId, settle: Settle) -> str:
    if settle.ballot.peer != sender:
        return f"{short(sender)} settled under a ballot of {short(settle.ballot.peer)}; expected its own"
    if state.open.committing is not None:
        return f"{short(sender)} settled a record, but {short(state.open.committing)} is being applied on this base"
    if state.is_leaving:
        return f"{short(sender)} settled a record, but we are leaving: nothing more is acked"
    if settle.ballot.attempt == 0 and sender != first_opener(state.link.commit, state.link.roster):
        return f"{short(sender)} settled attempt 0, which belongs to the first of the base roster"
    return ""


def refusal(to: PeerId, message: Proposal | Settle | PromiseRequest, promised: Ballot, above: str = "it or ") -> Send:
    """Refuse a ballot below the promised one; `above` is empty where the promised one itself would not do either."""
    found = f"attempt {message.ballot.attempt} of {short(message.ballot.peer)}"
    known = f"attempt {promised.attempt} of {short(promised.peer)} is promised here"
    return Send((to,), Refusal(message.unit, message.base, promised), f"refused {found}: {known}; expected {above}more")


def _why_not_ack(state: RoundState, link: ChainLink, now_s: float) -> str:
    record = link.record
    if record is None:
        return "a settled record without content"
    if not state.may_vote and not link.is_lone:
        return "no vote on this base: this disk does not know what its peer voted before"
    config, codecs = state.config, both_codecs(record.codec, record.result_codec)
    expected_codecs = both_codecs(config.codec, config.result_codec)
    outer = outer_of_round(config.outer, config.momentum_from_tokens, state.link)
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
    if link.is_lone and not may_be_lone(state, now_s):
        return "refused a lone record: there is a quorum to ask"
    if any(part.result_hash in state.open.useless for part in record.slices):
        return "refused a record that names a result whose bytes mean nothing"
    return ""


def bytes_held(state: RoundState, event: BytesHeld) -> RoundStep:
    """All bytes are on disk: write the ack."""
    opened, settle = state.open, event.settle
    if settle.base != state.link.commit or opened.gathering != settle or state.is_leaving:
        attempt = f"the bytes of attempt {settle.ballot.attempt} on {short(settle.base)} are here"
        return RoundStep(
            state, remark=f"{attempt}, but {'we are leaving' if state.is_leaving else 'nobody waits for them'}"
        )
    opened = replace(opened, gathering=None)
    if opened.promised is not None and settle.ballot < opened.promised:
        return RoundStep(replace(state, open=opened), (refusal(settle.ballot.peer, settle, opened.promised),))
    link = link_after(state.link, settle.record)
    entry = AckedRecord(settle.ballot, settle.record)
    # The log is written in the order of these orders, so a promise requested after this is written after this ack and names it.
    if link.is_lone:
        opened = replace(opened, acked_lone=entry, promised=settle.ballot)
    else:
        opened = replace(opened, acked=entry, promised=settle.ballot)
    why = f"all bytes of round {link.index} are on our disk"
    order = LogAck(settle.base, settle.ballot, settle.record, link.commit, link.is_lone, why)
    return RoundStep(replace(state, open=opened), (order,))


def ack_logged(state: RoundState, event: AckLogged) -> RoundStep:
    """The ack is on disk: send it."""
    if event.base != state.link.commit:
        return RoundStep(state, remark=_moved("an ack", event.base, state))
    ack = Ack(state.config.unit, event.base, event.ballot, event.commit)
    reason = f"acked round {state.link.index + 1}"
    return RoundStep(state, (Send((event.ballot.peer,), ack, reason),), reason)


def _moved(what: str, base: CommitId, state: RoundState) -> str:
    return f"{what} on {short(base)} is on disk and not sent: our head is {short(state.link.commit)}"


# --- before a take-over -------------------------------------------------------------------------------------------------------


def pre_vote_request(state: RoundState, sender: PeerId, request: PreVoteRequest, now_s: float) -> RoundStep:
    """A peer asks whether it may take over: agree if we, too, find the opener gone or overdue (R6)."""
    if request.ballot.peer != sender:
        remark = f"{short(sender)} asked about a ballot of {short(request.ballot.peer)}; expected its own"
        return RoundStep(state, remark=remark)
    objection = _objection(state, sender, request, now_s)
    if objection is not None:
        leads_s = attempt.left_s(state, now_s) if objection else 0.0
        return RoundStep(state, (_answer(state, sender, request.ballot, objection, leads_s),))
    opener = leading.expected_opener(state)
    question = PendingPreVote(sender, request.ballot, opener, now_s)
    asked = (*(q for q in state.open.asked if q.asker != sender), question)[-MAX_ASKED:]
    state = replace(state, open=replace(state.open, asked=asked))
    why = f"{short(sender)} would take over from {short(opener)}: is it there?"
    return RoundStep(state, (SendHeartbeat((opener,), own_heartbeat(state, now_s), True, why),))


def _answer(state: RoundState, asker: PeerId, ballot: Ballot, objection: str, leads_s: float = 0.0) -> Send:
    vote = PreVote(state.config.unit, state.link.commit, ballot, objection, leads_s)
    why = f"no to attempt {ballot.attempt}: {objection}" if objection else f"yes to attempt {ballot.attempt}: {_AGREED}"
    return Send((asker,), vote, why)


_AGREED: Final = "the expected leader is gone, overdue, or asks itself"


def _objection(state: RoundState, sender: PeerId, request: PreVoteRequest, now_s: float) -> str | None:
    """Why we object, an empty string to agree, None when the opener must be asked first."""
    opened, config = state.open, state.config
    if opened.promised is not None and request.ballot < opened.promised:
        return f"attempt {opened.promised.attempt} is promised already"
    if request.lone and not may_be_lone(state, now_s):
        return "a quorum of the base roster was in reach lately"
    if opened.committing is not None:
        return "a commit is being applied"
    led = opened.leading
    if led is not None and led.stage in ("collecting", "settling"):
        return f"leading attempt {led.ballot.attempt}"
    opener = leading.expected_opener(state)
    if opener in (sender, config.me.peer) or is_gone(state, opener) or opener not in state.peers:
        return ""
    if opened.proposal is not None:
        # the leader itself decides how long it gives the attempt: the asker asks it, too (leading.py)
        is_over = is_suspected(state, opener, now_s) or now_s - opened.proposal_at_s >= leading.overdue_s(state)
        return "" if is_over else f"attempt {opened.proposal.ballot.attempt} is under way"
    view = state.peers[opener]
    is_able = view.head is not None and view.head.head == state.link.commit and view.head.can_contribute
    if not is_able or request.waited_s >= leading.OVERDUE_FACTOR * config.suspect_after_s:
        return ""
    if now_s - view.heard_at_s <= config.suspect_after_s:
        return f"{short(opener)} is alive"
    return None


def answer_pre_votes(state: RoundState, now_s: float) -> RoundStep:
    """Answer questions whose opener was heard, or was silent for long enough since it was asked."""
    waiting: list[PendingPreVote] = []
    actions: list[Action] = []
    for question in state.open.asked:
        view = state.peers.get(question.opener)
        spoke = view is not None and view.heard_at_s > question.asked_at_s and not view.lost
        if spoke or is_gone(state, question.opener) or now_s - question.asked_at_s >= state.config.suspect_after_s:
            objection = f"{short(question.opener)} is alive" if spoke else ""
            actions.append(_answer(state, question.asker, question.ballot, objection))
        else:
            waiting.append(question)
    if not actions:
        return RoundStep(state)
    return RoundStep(replace(state, open=replace(state.open, asked=tuple(waiting))), tuple(actions))


# --- promises -----------------------------------------------------------------------------------------------------------------


def promise_request(state: RoundState, sender: PeerId, request: PromiseRequest) -> RoundStep:
    """A peer takes over: promise, durably, or report what is promised already (R16)."""
    opened = state.open
    found = f"attempt {request.ballot.attempt} of {short(request.ballot.peer)}"
    if request.ballot.peer != sender or request.ballot.attempt < 1:
        expected = "expected attempt 1 or more, of its own"
        return RoundStep(
            state, remark=f"{short(sender)} asked for a promise that is not its own to ask, {found}; {expected}"
        )
    if state.is_leaving:
        return RoundStep(state, remark=f"nothing is promised to {found}: we are leaving")
    if not state.may_vote:
        why = f"nothing is promised to {found}: no vote of ours counts on this base"
        # Tell the asker, or it would count on us for ever: it may not have heard the goodbye of our earlier process.
        never = Refusal(state.config.unit, request.base, Ballot(LAST_ATTEMPT, state.config.me.peer))
        return RoundStep(state, (Send((sender,), never, why),) if opened.has_left else (), remark=why)
    # Each ballot is promised once: a leader that lost its disk may not know that it had this one before.
    if opened.promised is not None and request.ballot <= opened.promised:
        return RoundStep(state, (refusal(sender, request, opened.promised, above=""),))
    opened = replace(
        opened,
        promised=request.ballot,
        highest_attempt=max(opened.highest_attempt, request.ballot.attempt),
        gathering=None,
    )
    why = f"{found} takes over, and nothing higher is promised"
    return RoundStep(replace(state, open=opened), (LogPromise(request.base, request.ballot, why),))


def promise_logged(state: RoundState, event: PromiseLogged, now_s: float) -> RoundStep:
    """The promise is on disk: send it, with what we acked. Our own promise lets our attempt go on."""
    if event.base != state.link.commit:
        return RoundStep(state, remark=_moved("a promise", event.base, state))
    if state.open.promised != event.ballot:
        return RoundStep(
            state, remark=f"the promise to attempt {event.ballot.attempt} is on disk; a higher one was made since"
        )
    if event.ballot.peer == state.config.me.peer:
        return leading.own_promise_logged(state, now_s)
    if state.open.leading is not None and state.open.leading.ballot < event.ballot:
        state = replace(state, open=replace(state.open, leading=None))
    # The promised peer gets the time to propose: an attempt that it displaced would fence it off at once, and so on for ever.
    quiet_until_s = max(state.open.quiet_until_s, now_s + state.config.suspect_after_s)
    state = replace(state, open=replace(state.open, quiet_until_s=quiet_until_s))
    promise = Promise(state.config.unit, event.base, event.ballot, state.open.acked)
    reason = f"promised attempt {event.ballot.attempt}"
    return RoundStep(state, (Send((event.ballot.peer,), promise, reason),), reason)


# --- goodbye ------------------------------------------------------------------------------------------------------------------


def is_owed_bytes(state: RoundState, now_s: float, asked_s: float) -> bool:
    """Whether this peer, asked to leave at `asked_s`, has to stay. It acked a record that is not committed yet, and perhaps no
    other live peer has the bytes. The record's leader has them and stays as we would, unless it is this peer, is suspected, or had
    no time yet.
    """
    acked, me = state.open.acked, state.config.me.peer
    if acked is None or state.is_leaving or all(is_gone(state, peer) for peer in state.link.roster if peer != me):
        return False
    leader = acked.ballot.peer
    return leader == me or is_suspected(state, leader, now_s) or now_s - asked_s < NOTICED_WITHIN_S


def leave_ordered(state: RoundState) -> RoundStep:
    """The owner wants to go: nothing is acked or promised from here on, and that is on disk before it is announced."""
    if state.is_leaving:
        return RoundStep(state, remark="leaving already")
    opened = replace(state.open, leading=None, gathering=None)
    # A peer that does not know all its votes on this base must stay in its electorate: it may have helped to decide it.
    promised = Ballot(LAST_ATTEMPT, state.config.me.peer) if opened.has_left else opened.promised
    leave = Leave(state.config.me, state.config.unit, state.link.commit, promised, opened.acked)
    state = replace(state, is_leaving=True, open=opened)
    return RoundStep(state, (LogLeave(leave, "the owner wants to go"),), "leaving")


def leave_logged(state: RoundState, event: LeaveLogged) -> RoundStep:
    """The goodbye is on disk: send it to everybody."""
    others = tuple(peer for peer in sorted(state.peers) if not state.peers[peer].left)
    if not others:
        return RoundStep(state, remark="nobody is there to say goodbye to")
    return RoundStep(state, (Send(others, event.leave, "we leave: do not wait for us"),))
