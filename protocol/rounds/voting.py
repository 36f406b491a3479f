"""A member's votes: acks of settled records, promises to peers that take over, opinions before that, and its goodbye.

Acks, promises and goodbyes are durable before they are sent. A pre-vote binds nobody and is not written down. A promise may name an
ack of the promised ballot that is still on its way to the disk: its leader needs no more promises.

Rules: R6, R13, R14, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from protocol.errors import RemoteProtocolError, VersionError
from protocol.frozen import replace
from protocol.ids import CommitId, PeerId, short
from protocol.rounds import attempt, leading
from protocol.rounds.bad_results import false_sum_problem, unusable
from protocol.rounds.ballot_proofs import consent_problem, leaves_in, promise_problem, with_leaves
from protocol.rounds.events import AckLogged, BytesHeld, LeaveLogged, LeaveOrdered, PromiseLogged
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.record_rules import SignatureCheck, low_cap_problem, may_vote_next, record_problem
from protocol.rounds.lineage.rule_numbers import SIGNED, takes_turns
from protocol.rounds.lineage.turns import left_out
from protocol.rounds.messages.messages import (
    NO_COMMIT_NAMED,
    Ack,
    AckedRecord,
    Leave,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    Settle,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot, CommitRecord
from protocol.rounds.messages.wire import commit_id
from protocol.rounds.orders import Action, GatherBytes, LogAck, LogLeave, LogPromise, Send, SendHeartbeat
from protocol.rounds.participants import held_because, takes_part, with_voters
from protocol.rounds.queries import (
    base_opener,
    citation_problem,
    idle_patience_s,
    is_alive,
    is_gone,
    is_refused,
    is_suspected,
    may_be_lone,
    may_hand_on,
    standing_of,
    trusted_peers,
)
from protocol.rounds.state import LeaderAttempts, OpenRound, PendingPreVote, RoundState, RoundStep
from protocol.rounds.telling import own_heartbeat

ACK_VERSION: Final = 1
"""Of acks that name the one before them."""

LEAVE_VERSION: Final = 1
"""Of goodbyes that claim the highest ballot where their signer does not know all its votes."""

MAX_ASKED = 64
"""Pre-votes that wait for a sign of the opener; one for each member that may ask."""

MOST_LED: Final = 3
"""Attempts on one base that a leader may make in a row while others could lead."""

MOST_DOUBLINGS: Final = 16
"""Of the pause between promises to one peer."""

NO_KEEPER: Final = "it is no keeper, and keepers alone lead rounds"

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
        return RoundStep(state, (), f"refused a record of {short(sender)}: {error.one_line()}")
    acked = opened.acked_lone if link.is_lone else opened.acked
    if acked is not None and acked.ballot == settle.ballot:
        if acked.record != settle.record:  # a ballot has one record (R13)
            return RoundStep(state, remark=f"{short(sender)} settled two records in one ballot; the first stands")
        # written again before it is sent again: a full disk may have refused it the first time
        why = f"{short(sender)} asks again for the ack of attempt {settle.ballot.attempt}"
        return RoundStep(state, (_log_ack(state, settle, link, why),))
    if opened.gathering is not None and settle.ballot <= opened.gathering.ballot:
        gathering = f"the bytes of attempt {opened.gathering.ballot.attempt} are being gathered"
        remark = f"{short(sender)} settled attempt {settle.ballot.attempt}, but {gathering}; expected a higher one"
        return RoundStep(state, remark=remark)
    problem = _why_not_ack(state, link, now_s) or false_sum_problem(state, settle, link.record)
    if problem:
        return RoundStep(state, (), problem)
    problem = _broken_rule(state, settle, link, now_s)
    if problem:
        if sender != state.config.me.peer:
            attempts = replace(opened.leaders.get(sender, LeaderAttempts()), refused_at_s=now_s)
            leaders = MappingProxyType({**opened.leaders, sender: attempts})
            state = replace(state, open=replace(opened, leaders=leaders))
        return RoundStep(state, (), f"refused a record of {short(sender)}: {problem}")
    state = with_leaves(state, settle)
    state = replace(state, open=replace(state.open, gathering=settle))
    why = f"attempt {settle.ballot.attempt} of round {link.index} is settled: its bytes come to our disk before our ack"
    return RoundStep(state, (GatherBytes(settle, why),))


def _why_not_settled(state: RoundState, sender: PeerId, settle: Settle) -> str:
    if settle.ballot.peer != sender:
        return f"{short(sender)} settled under a ballot of {short(settle.ballot.peer)}; expected its own"
    if state.open.committing is not None:
        return f"{short(sender)} settled a record, but {short(state.open.committing)} is being applied on this base"
    if state.is_leaving:
        return f"{short(sender)} settled a record, but we are leaving: nothing more is acked"
    if settle.ballot.attempt == 0 and sender != base_opener(state):
        return f"{short(sender)} settled attempt 0, which belongs to the first of the base roster"
    return ""


def refusal(to: PeerId, message: Proposal | Settle | PromiseRequest, promised: Ballot, above: str = "it or ") -> Send:
    """Refuse a ballot below the promised one; `above` is empty where the promised one itself would not do either."""
    found = f"attempt {message.ballot.attempt} of {short(message.ballot.peer)}"
    known = f"attempt {promised.attempt} of {short(promised.peer)} is promised here"
    return Send((to,), Refusal(message.unit, message.base, promised), f"refused {found}: {known}; expected {above}more")


def _why_not_ack(state: RoundState, link: ChainLink, now_s: float) -> str:
    record = link.record
    if record is None or record.rewind:
        return "a settled record without content"
    if not state.may_vote and not link.is_lone:
        return "no vote on this base: this disk does not know what its peer voted before"
    if link.is_lone and not may_be_lone(state, now_s):
        return "refused a lone record: there is a quorum to ask"
    return unusable(state, record)


def _broken_rule(state: RoundState, settle: Settle, link: ChainLink, now_s: float) -> str:
    """Which rule of records its leader broke; empty for an honest one."""
    try:
        told = {peer: signed.leave for peer, signed in leaves_in(state, settle).items()}
        leaves = {**told, **state.open.departures}
    except (RemoteProtocolError, VersionError) as error:
        return f"a goodbye that does not count: {error.one_line()}"
    problem = _why_not_right(state, settle, link, leaves)
    if problem or (link.record is not None and link.record.ballot != settle.ballot):
        return problem  # a record that was acked before has to be finished as it is, whoever came back since
    return citation_problem(state, link.record) or _why_not_fair(state, link, leaves, now_s)


def _why_not_right(state: RoundState, settle: Settle, link: ChainLink, leaves: Mapping[PeerId, Leave]) -> str:
    """Why the record breaks a rule that everybody can check, now or years later."""
    config, record = state.config, link.record
    if record is None or record.rules < SIGNED:
        old = "it has no signatures of those whom it counts, so its leader runs an older release"
        return f"{old}; other members go on without it: ask its owner to install this release"
    problem = record_problem(state.link, record, SignatureCheck(config.verifier, config.run_id), leaves)
    return problem or ("" if link.is_lone else promise_problem(state, settle))


def _why_not_fair(state: RoundState, link: ChainLink, leaves: Mapping[PeerId, Leave], now_s: float) -> str:
    """Why the record contradicts what we saw ourselves. Others may have seen something else, so it is no proof.

    A voter that its leader left out judges, too: else the members that a leader chose would decide by themselves about all others.
    """
    record, proposal = link.record, state.open.proposal
    if record is None or record.lone:
        return ""
    if proposal is not None and proposal.ballot != record.ballot:
        proposal = None  # of another attempt
    if _is_passed_over(state, record, proposal, now_s):
        return "it counts nothing of ours, nor of most members"
    if low := low_cap_problem(state.link, record, trusted_peers(state, {*state.link.roster, *state.peers})):
        return low
    if len(record.roster) >= state.config.max_members:
        return ""  # there is room for no more
    voters, check = frozenset(state.link.roster), SignatureCheck(state.config.verifier, state.config.run_id)
    eligible = (entry.peer for entry in record.contributors if may_vote_next(voters, entry, check))
    if out := left_out(eligible, record.roster, leaves):
        return f"it leaves {short(out[0])} out of the voters, which contributed, and has room for more"
    dropped = (peer for peer in state.link.roster if peer not in record.roster)
    alive = [peer for peer in dropped if takes_part(state, proposal, peer, leaves.get(peer), now_s)]
    return f"it drops {short(alive[0])} from the voters, which takes part and answers us" if alive else ""


def _is_passed_over(state: RoundState, record: CommitRecord, proposal: Proposal | None, now_s: float) -> bool:
    """Whether the record leaves us out, who have something to offer, and a quorum of the base roster or most members too."""
    counted = [entry.peer for entry in record.contributors]
    if state.config.me.peer in counted:
        return False
    # where peers take turns most voters have none in this round, and vote on all the same
    is_turn = takes_turns(record.rules) and 2 * len(counted) > state.config.max_members
    kept = record.roster if is_turn else ()
    if proposal is None:
        has_work = state.can_contribute and state.tokens_ready > 0
        return has_work and not may_hand_on(state, record.ballot, {*counted, *kept}, now_s)
    has_work = state.open.contribution is not None and state.open.contribution.tokens > 0
    members = {member.peer for member in proposal.members}
    are_few = len(counted) <= len(members) // 2 or not may_hand_on(state, record.ballot, members.union(kept), now_s)
    return has_work and are_few


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
        is_other = opened.acked is not None and opened.acked.record != entry.record
        before = opened.acked if is_other else opened.acked_before
        opened = replace(opened, acked=entry, acked_before=before, promised=settle.ballot)
    why = f"all bytes of round {link.index} are on our disk"
    state = replace(state, open=opened)
    return RoundStep(state, (_log_ack(state, settle, link, why),))


def _log_ack(state: RoundState, settle: Settle, link: ChainLink, why: str) -> LogAck:
    """The ack goes to disk with the goodbyes that are known here: whoever finishes the record has to show those it relies on."""
    leaves = tuple(signed.raw for _, signed in sorted(state.open.leaves.items()))
    return LogAck(settle.base, settle.ballot, settle.record, link.commit, link.is_lone, leaves, why)


def ack_logged(state: RoundState, event: AckLogged) -> RoundStep:
    """The ack is on disk: send it."""
    if event.base != state.link.commit:
        return RoundStep(state, remark=_moved("an ack", event.base, state))
    opened = state.open
    is_lone = opened.acked_lone is not None and opened.acked_lone.ballot == event.ballot
    if not is_lone and (opened.acked is None or opened.acked.ballot != event.ballot):
        return RoundStep(state, remark=f"the ack of attempt {event.ballot.attempt} is on disk; another was made since")
    before = None if is_lone else opened.acked_before
    ack = Ack(
        state.config.unit,
        event.base,
        event.ballot,
        event.commit,
        is_lone,
        None if before is None else before.ballot,
        NO_COMMIT_NAMED if before is None else commit_id(event.base, before.record),
        ACK_VERSION,
    )
    reason = f"acked round {state.link.index + 1}"
    return RoundStep(state, (Send((event.ballot.peer,), ack, reason),), reason)


def _moved(what: str, base: CommitId, state: RoundState) -> str:
    return f"{what} on {short(base)} is on disk and not sent: our head is {short(state.link.commit)}"


# --- before a take-over -------------------------------------------------------------------------------------------------------


def pre_vote_request(state: RoundState, sender: PeerId, request: PreVoteRequest, now_s: float) -> RoundStep:
    """A peer asks whether it may take over: agree if we, too, find the opener gone or overdue (R6)."""
    if request.ballot.peer != sender:
        other = f"a ballot of {short(request.ballot.peer)}"
        return RoundStep(state, remark=f"{short(sender)} asked about {other}; expected its own")
    objection = _objection(state, sender, request, now_s)
    if objection is not None:
        leads_s = attempt.left_s(state, now_s) if objection else 0.0
        return RoundStep(state, (_answer(state, sender, request.ballot, objection, leads_s),))
    opener = leading.expected_opener(state)
    others, question = state.open.asked, PendingPreVote(sender, request.ballot, opener, now_s)
    asked = (*(each for each in others if each.asker != sender), question)[-MAX_ASKED:]
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
    if not standing_of(state, sender).may_vote:
        return NO_KEEPER
    if opened.promised is not None and request.ballot < opened.promised:
        return f"attempt {opened.promised.attempt} is promised already"
    if _had_its_turns(state, sender, now_s):
        return f"it led {_num_proposed(state, sender)} attempts on this base; it is the turn of others"
    if is_refused(state, sender, now_s):
        return "its record on this base broke a rule"
    if _was_promised_lately(state, sender, now_s):
        return "it was promised an attempt on this base only now"
    if request.lone and not may_be_lone(state, now_s):
        return "a quorum of the base roster was in reach lately"
    if closed := "a commit is being applied" if opened.committing is not None else held_because(state):
        return closed
    led = opened.leading
    if led is not None and led.stage in ("collecting", "settling"):
        return f"leading attempt {led.ballot.attempt}"
    opener = leading.expected_opener(state)
    waited_s = 0.0 if opened.due_since_s is None else now_s - opened.due_since_s
    is_late = waited_s >= leading.OVERDUE_FACTOR * config.suspect_after_s
    if opener == config.me.peer != sender and opened.proposal is None and not is_late and _may_open(state, now_s):
        return "it is our turn to open the round"
    if opener in (sender, config.me.peer) or opener not in state.peers:
        return ""
    if is_gone(state, opener) or is_refused(state, opener, now_s):
        return ""
    if opened.proposal is not None:
        # the leader itself decides how long it gives the attempt: the asker asks it, too (leading.py)
        is_over = is_suspected(state, opener, now_s) or now_s - opened.proposal_at_s >= leading.overdue_s(state)
        return "" if is_over else f"attempt {opened.proposal.ballot.attempt} is under way"
    view = state.peers[opener]
    # shortly after a commit its opener may not have reported that it applied it
    is_here = view.head is not None and (
        view.head.head == state.link.commit or now_s - state.committed_at_s < config.suspect_after_s
    )
    is_able = is_here and view.head is not None and view.head.can_contribute
    if not is_able or is_late:
        return ""
    if now_s - view.heard_at_s <= config.suspect_after_s:
        return f"{short(opener)} is alive"
    return None


def _had_its_turns(state: RoundState, asker: PeerId, now_s: float) -> bool:
    """Whether the leader of the last attempt wants one more after several that came to nothing. Others get a longest interval for
    theirs: a leader that proposes and never settles could lead for ever.
    """
    opened = state.open
    if opened.proposal is None or opened.proposal.ballot.peer != asker or _num_proposed(state, asker) < MOST_LED:
        return False
    if all(peer == asker or not is_alive(state, peer, now_s, idle_patience_s(state)) for peer in state.link.roster):
        return False
    return now_s - opened.proposal_at_s < leading.overdue_s(state) + state.config.longest_interval_s


def _may_open(state: RoundState, now_s: float) -> bool:
    return state.can_contribute and not state.is_leaving and state.open.quiet_until_s <= now_s


def _was_promised_lately(state: RoundState, asker: PeerId, now_s: float) -> bool:
    """Whether this peer took over on this base so lately that an honest one would still wait: it backs off as long after each attempt
    that failed (R6). A peer that took over again and again, and proposed nothing, would fence off everybody's attempts.
    """
    attempts = state.open.leaders.get(asker, LeaderAttempts())
    if not attempts.num_promised:
        return False
    pause_s = min(2.0 ** min(attempts.num_promised, MOST_DOUBLINGS), state.config.longest_interval_s)
    return now_s < attempts.promised_at_s + pause_s


def _promised(opened: OpenRound, leader: PeerId, now_s: float) -> Mapping[PeerId, LeaderAttempts]:
    known = opened.leaders.get(leader, LeaderAttempts())
    known = replace(known, num_promised=known.num_promised + 1, promised_at_s=now_s)
    return MappingProxyType({**opened.leaders, leader: known})


def _num_proposed(state: RoundState, leader: PeerId) -> int:
    return state.open.leaders.get(leader, LeaderAttempts()).num_proposed


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


def promise_request(state: RoundState, sender: PeerId, request: PromiseRequest, now_s: float) -> RoundStep:
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
    problem = "" if standing_of(state, sender).may_vote else NO_KEEPER
    problem = problem or consent_problem(state, request.ballot, request.pre_votes, lone=request.lone, now_s=now_s)
    if not problem and sender != state.config.me.peer and _was_promised_lately(state, sender, now_s):
        problem = "it was promised an attempt on this base only now"
    if problem:
        return RoundStep(state, remark=f"nothing is promised to {found}: {problem}")
    opened = replace(
        opened,
        promised=request.ballot,
        highest_attempt=max(opened.highest_attempt, request.ballot.attempt),
        gathering=None,
        leaders=_promised(opened, sender, now_s),
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
        state = with_voters(state, state.open.leading)
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


def leave_ordered(state: RoundState, event: LeaveOrdered) -> RoundStep:
    """The owner wants to go: nothing is acked or promised from here on, and that is on disk before it is announced."""
    if state.is_leaving:
        return RoundStep(state, remark="leaving already")
    opened, base = replace(state.open, leading=None, gathering=None), state.link.commit
    # A peer that does not know all its votes on this base must stay in its electorate: it may have helped to decide it.
    promised = opened.promised if state.may_vote else Ballot(LAST_ATTEMPT, state.config.me.peer)
    leave = Leave(
        state.config.me, state.config.unit, base, promised, opened.acked, event.carrier_on(base), LEAVE_VERSION
    )
    state = replace(state, is_leaving=True, open=opened)
    return RoundStep(state, (LogLeave(leave, "the owner wants to go"),), "leaving")


def leave_logged(state: RoundState, event: LeaveLogged) -> RoundStep:
    """The goodbye is on disk: send it to everybody."""
    others = tuple(peer for peer in sorted(state.peers) if not state.peers[peer].left)
    if not others:
        return RoundStep(state, remark="nobody is there to say goodbye to")
    return RoundStep(state, (Send(others, event.leave, "we leave: do not wait for us"),))
