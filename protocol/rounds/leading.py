"""How this peer comes to lead a round: open, ask before taking over, collect promises (R5, R6, R16, R18).

Every function takes the state and returns a `RoundStep`; machine.py calls them. The leader's further work is in attempt.py.

Rules: R5, R6, R13, R16, R18, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.rounds import attempt
from protocol.rounds.bad_results import names_useless
from protocol.rounds.ballot_proofs import Acked, highest_first, may_be_decided
from protocol.rounds.lineage.lineage import is_taken_back
from protocol.rounds.lineage.quorum import is_quorum, opener_order
from protocol.rounds.lineage.rewind import counted_only
from protocol.rounds.messages.messages import (
    AckedRecord,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.orders import LogPromise, Send
from protocol.rounds.participants import (
    attempt_s,
    held_because,
    is_doubted,
    known_at_base,
    lone_party,
    most_left_s,
    waiting_for,
    who_is_late,
)
from protocol.rounds.queries import (
    base_opener,
    caught_up,
    due_at_tokens,
    due_within_s,
    has_vote,
    is_alive,
    is_base_quorum,
    is_due,
    is_gone,
    is_refused,
    is_suspected,
    may_be_lone,
    may_hand_on,
    quorum_in_reach,
    silence_s,
    standing_of,
    thin_line_s,
)
from protocol.rounds.state import Leading, RoundState, RoundStep
from protocol.rounds.telling import opener_patience_s

RANK_DELAY_S: Final = 1.0
"""The peer of rank r takes over this many seconds times r later (R6), so that two who think alike do not duel."""

OVERDUE_FACTOR: Final = 2.0
"""An opener that answers but does not open does not know our tokens, or cannot be reached by most. It gets twice the time."""


def expected_opener(state: RoundState) -> PeerId:
    """The peer that we expect to lead next: the leader of the running attempt, else the owner of attempt 0."""
    if state.open.proposal is not None:
        return state.open.proposal.ballot.peer
    return base_opener(state)


def leads(state: RoundState, ballot: Ballot) -> bool:
    """Whether we lead the attempt of this ballot and it still runs: then our messages of it may be repeated."""
    return state.open.leading is not None and state.open.leading.ballot == ballot


def tick(state: RoundState, now_s: float) -> RoundStep:
    """Open, take over, or end an attempt that ran out of time; else report what is waited for."""
    if state.open.committing is not None:
        return RoundStep(state, waiting=f"round {state.link.index + 1} is decided and being applied")
    if state.switching is not None and state.switching.is_flipping:
        return RoundStep(
            state, waiting=f"the rounds of the other peers are being fetched, up to {short(state.switching.target)}"
        )
    if state.open.leading is not None:
        return _tick_leading(state, state.open.leading, now_s)
    if state.open.proposal is None and state.open.acked is None and not is_due(state, now_s):
        is_new = state.open.due_since_s is not None
        state = replace(state, open=replace(state.open, due_since_s=None)) if is_new else state
        return RoundStep(state, waiting=_until_due(state))
    if state.open.due_since_s is None:
        state = replace(state, open=replace(state.open, due_since_s=now_s))
    kept = _why_no_attempt(state, now_s)
    if kept:
        return RoundStep(state, waiting=f"{_open_round(state)}; {kept}")
    first = Ballot(0, state.config.me.peer)
    late = who_is_late(state, now_s) if state.open.proposal is None and state.open.acked is None else None
    state = waiting_for(state, late, now_s)
    if _may_open_first(state) and quorum_in_reach(state, first, now_s):
        kept = _why_not_open(state, first, late, now_s)
        return RoundStep(state, waiting=kept) if kept else _open_first(state, now_s)
    if late is not None:  # mostly the opener itself: without it the round would belong to those with the faster lines
        return RoundStep(state, waiting=_until_applied(state, late))
    waited_s = _waited_s(state, now_s)
    if waited_s is None:
        return RoundStep(state, waiting=_until_take_over(state))
    return _ask(state, waited_s, now_s)


def _until_due(state: RoundState) -> str:
    if state.run_tokens >= state.config.total_tokens:
        return f"the run is over: all {state.config.total_tokens:,} tokens are committed"
    return (
        f"training: round {state.link.index + 1} is opened at {due_at_tokens(state):,} ready tokens, "
        f"or {due_within_s(state):g} s after the last one"
    )


def _open_round(state: RoundState) -> str:
    what = "is due" if state.open.proposal is None else "is under way"
    return f"round {state.link.index + 1} {what}"


def _why_no_attempt(state: RoundState, now_s: float) -> str:
    if held := held_because(state):
        return held
    if not state.can_contribute:
        return "we lead none while there is nothing verified to train on, or no trainer"
    if state.is_leaving:
        return "we are leaving"
    if not standing_of(state, state.config.me.peer).may_vote:
        return "we lead none: the host made us no keeper"
    return _why_set_back(state, now_s) or (
        "our next attempt waits: the last one ended, or another one came first"
        if now_s < state.open.quiet_until_s
        else ""
    )


def _why_set_back(state: RoundState, now_s: float) -> str:
    """Why nobody would ack our record near a rewind (R28): it stands on a base that is taken back, or counts us. Else empty."""
    allowed = counted_only(state.tree.behind(state.link.commit))
    if state.switching is not None and is_taken_back(state.tree, state.switching.target, state.link.commit):
        return "we lead none: the host took our rounds back, and the run's own are being fetched"
    if allowed is None or state.config.me.peer in allowed:
        return ""
    are_all_gone = may_be_lone(state, now_s) and allowed.isdisjoint(view.peer for view in caught_up(state, now_s))
    return "" if are_all_gone else "we lead none: the host took rounds back, and the next ones do not count us"


def _why_not_open(state: RoundState, first: Ballot, late: PeerId | None, now_s: float) -> str:
    if not is_due(state, now_s):
        return _until_due(state)
    if late is not None:
        return _until_applied(state, late)
    members = {first.peer, *(view.peer for view in caught_up(state, now_s))}
    if not may_hand_on(state, first, members, now_s):
        return f"{_open_round(state)}; too few members of the last round are caught up"
    return ""


def _until_applied(state: RoundState, late: PeerId) -> str:
    return f"{_open_round(state)}; waiting for {short(late)}, which has not yet reported that it applied the last one"


def _until_take_over(state: RoundState) -> str:
    opener, proposal = expected_opener(state), state.open.proposal
    if opener == state.config.me.peer:
        return f"{_open_round(state)}; we lead it again when it is our turn"
    if proposal is None:
        return f"{_open_round(state)}; {short(opener)} is expected to open it"
    return f"{_open_round(state)}: attempt {proposal.ballot.attempt}, led by {short(opener)}"


def _may_open_first(state: RoundState) -> bool:
    """Attempt 0 is ours, and nobody has gone beyond it, nor have we before a crash."""
    opened = state.open
    is_first = base_opener(state) == state.config.me.peer
    return is_first and state.may_vote and opened.promised is None and opened.proposal is None and opened.acked is None


def _open_first(state: RoundState, now_s: float) -> RoundStep:
    """Open attempt 0. The lowest ballot needs no promises of others, but our own promise comes before anybody hears of it."""
    led = Leading(Ballot(0, state.config.me.peer), "promising", now_s + state.config.promise_within_s)
    return _promise_to_ourselves(state, led)


def _waited_s(state: RoundState, now_s: float) -> float | None:
    """Seconds that we waited for the opener, once that is long enough to take over; None before."""
    opened, config = state.open, state.config
    opener = expected_opener(state)
    is_lost = False
    has_turn = opened.proposal is not None and opener == config.me.peer  # our own attempt failed, or we restarted
    if opened.proposal is None:
        waited_s = now_s - opened.due_since_s if opened.due_since_s is not None else 0.0
        is_lost = opener != config.me.peer and not is_alive(state, opener, now_s, opener_patience_s(state))
        wait_s = config.suspect_after_s * (1.0 if is_lost else OVERDUE_FACTOR)
        if is_gone(state, opener) or is_refused(state, opener, now_s):
            wait_s = 0.0  # it said goodbye, or its process is gone: nobody will open in its place unless we do
    elif has_turn:
        waited_s, wait_s = now_s - opened.proposal_at_s, 0.0
    elif is_refused(state, opener, now_s):  # its record broke a rule: nobody waits for another one of it
        is_lost = True
        waited_s, wait_s = now_s - opened.proposal_at_s, 0.0
    elif is_suspected(state, opener, now_s):
        is_lost = True
        waited_s = silence_s(state, opener, now_s)
        wait_s = 0.0 if is_gone(state, opener) else config.suspect_after_s
    else:
        waited_s, wait_s = now_s - opened.proposal_at_s, overdue_s(state)
    if waited_s < wait_s:
        return None
    delay_s = 0.0 if has_turn else _rank(state, now_s, without=opener if is_lost else None) * RANK_DELAY_S
    return waited_s if waited_s >= wait_s + delay_s else None


def overdue_s(state: RoundState) -> float:
    """Seconds after which the leader of the running attempt has had its time, as far as we know: every mend may have cost a
    deadline. The leader's own statement counts if it is longer.
    """
    opened = state.open
    if opened.proposal is None:
        return OVERDUE_FACTOR * state.config.suspect_after_s
    return max(attempt_s(state, opened.proposal), opened.given_s)


def _rank(state: RoundState, now_s: float, *, without: PeerId | None) -> int:
    """Our rank among the live, caught-up peers for the next attempt. Unreachable peers come after reachable ones. `without` is the
    opener that we take over from: it may have been heard just now, and would get its turn again while all wait.
    """
    views = [view for view in caught_up(state, now_s) if view.peer != without]
    me = state.config.me.peer
    link, others = state.link, [view.peer for view in views]
    order = opener_order(state.config.run_id, link.unit, link.index, state.open.highest_attempt + 1, [*others, me])
    inbound = {view.peer for view in views if view.is_inbound_reachable}
    if state.config.is_inbound_reachable:
        inbound.add(me)
    return sorted(order, key=lambda peer: peer not in inbound).index(me)


# --- before a take-over -------------------------------------------------------------------------------------------------------


def _ask(state: RoundState, waited_s: float, now_s: float) -> RoundStep:
    """Ask whether others find the opener gone, too: a peer that hears nobody must not fence off those who do (R6)."""
    opened, config = state.open, state.config
    floor = opened.promised.attempt if opened.promised is not None else 0
    ballot = Ballot(max(opened.highest_attempt, floor) + 1, config.me.peer)
    lone_voters: tuple[PeerId, ...] = ()
    if not quorum_in_reach(state, ballot, now_s):
        if not may_be_lone(state, now_s):
            reason = "too few members of the last round answer; training goes on"
            return RoundStep(state, (), reason, waiting=reason)
        lone_voters = lone_party(state, now_s)
    led = Leading(
        ballot,
        "asking",
        now_s + config.promise_within_s,
        lone_voters=lone_voters,
    )
    leader = _running_leader(state, led, now_s)
    asked = (*_voters(state, led), leader) if leader is not None else _voters(state, led)
    led = replace(led, deadline_s=led.deadline_s + _answer_patience_s(state, leader))
    state = replace(state, open=replace(opened, leading=led))
    others = tuple(dict.fromkeys(peer for peer in asked if peer != config.me.peer))
    request = PreVoteRequest(config.unit, state.link.commit, ballot, waited_s, lone=bool(lone_voters))
    reason = f"asking whether attempt {ballot.attempt} is wanted"
    asking = RoundStep(state, (Send(others, request, reason),) if others else (), reason)
    return _after_pre_votes(asking, now_s)


def _running_leader(state: RoundState, led: Leading, now_s: float) -> PeerId | None:
    """The leader of the running attempt, if its answer is needed before a quorum takes over. It may know of a line that became thin
    and needs more time. None where there is nobody to ask, or it has answered.
    """
    proposal = state.open.proposal
    if proposal is None or led.lone_voters or led.has_leaders_word:
        return None
    leader = proposal.ballot.peer
    is_ours = leader == state.config.me.peer
    return None if is_ours or is_refused(state, leader, now_s) or is_suspected(state, leader, now_s) else leader


def _answer_patience_s(state: RoundState, leader: PeerId | None) -> float:
    """How long to wait for the leader's answer: longer behind a thin line."""
    view = state.peers.get(leader) if leader is not None else None
    return 0.0 if view is None else thin_line_s(state, view)


def _voters(state: RoundState, led: Leading) -> tuple[PeerId, ...]:
    return led.lone_voters or tuple(dict.fromkeys((*state.link.roster, state.config.me.peer)))


def has_all_votes(state: RoundState, led: Leading, votes: frozenset[PeerId]) -> bool:
    """Whether the votes are a quorum of the base roster, or everybody at hand for a lone attempt."""
    if led.lone_voters:
        return votes.issuperset(led.lone_voters)
    return is_base_quorum(state, led.ballot, votes)


def pre_vote(state: RoundState, sender: PeerId, message: PreVote, raw: bytes, now_s: float) -> RoundStep:
    """An answer to our question came. One objection is enough to wait if it makes a quorum impossible for now."""
    led = state.open.leading
    if led is None or led.stage != "asking" or message.ballot != led.ballot:
        return RoundStep(state, remark=_unasked(f"a pre-vote of {short(sender)}", message.ballot, led))
    if sender == expected_opener(state):
        led = replace(led, has_leaders_word=True)
        state = replace(state, open=replace(state.open, leading=led))
        is_believed = not (is_refused(state, sender, now_s) or is_doubted(state, sender))
        if message.leads_s > 0.0 and state.open.proposal is not None and is_believed:
            return _given_time(state, state.open.proposal, message.leads_s, now_s)
    if message.objection:
        return _after_pre_votes(RoundStep(state, (), f"{short(sender)} objects: {message.objection}"), now_s)
    envelopes = MappingProxyType({**led.pre_vote_envelopes, sender: raw})
    led = replace(led, pre_vote_envelopes=envelopes)
    remark = f"{short(sender)} wants attempt {led.ballot.attempt}, too: {len(envelopes)} others do; expected a quorum"
    return _after_pre_votes(RoundStep(replace(state, open=replace(state.open, leading=led)), remark=remark), now_s)


def _given_time(state: RoundState, proposal: Proposal, leads_s: float, now_s: float) -> RoundStep:
    """The leader still gives the attempt time, so we do too, as long as an honest one may."""
    opened = state.open
    since_s, longest_s = now_s - opened.proposal_at_s, most_left_s(state, proposal)
    most_s = opened.revision * (proposal.reduce_within_s + state.config.suspect_after_s) + longest_s
    given_s = min(since_s + min(leads_s, longest_s), most_s)
    state = replace(state, open=replace(opened, given_s=max(opened.given_s, given_s)))
    leader = short(proposal.ballot.peer)
    return attempt.stood_back(state, now_s, f"{leader} gives attempt {proposal.ballot.attempt} {leads_s:.0f} s more")


def _unasked(what: str, ballot: Ballot, led: Leading | None) -> str:
    expected = "none: no attempt of ours asks" if led is None else f"attempt {led.ballot.attempt}, which is {led.stage}"
    return f"{what} for attempt {ballot.attempt} of {short(ballot.peer)}; expected {expected}"


def _after_pre_votes(step: RoundStep, now_s: float) -> RoundStep:
    state, led = step.state, step.state.open.leading
    if led is None:
        return step
    own = {state.config.me.peer} if state.may_vote or led.lone_voters else set()
    if not has_all_votes(state, led, frozenset({*led.pre_vote_envelopes, *own})):
        return step
    if now_s < led.deadline_s and _running_leader(state, led, now_s) is not None:
        return step
    highest = state.open.promised
    if highest is not None and highest > led.ballot:
        # a higher ballot came while we asked: our promises never go down, or two records could be decided (R16)
        stood = attempt.stood_back(state, now_s, f"attempt {highest.attempt} of {short(highest.peer)} came first")
        return RoundStep(stood.state, (*step.actions, *stood.actions), stood.reason)
    led = replace(led, stage="promising", deadline_s=now_s + state.config.promise_within_s)
    promised = _promise_to_ourselves(state, led)
    return RoundStep(promised.state, (*step.actions, *promised.actions), promised.reason)


# --- promises -----------------------------------------------------------------------------------------------------------------


def _promise_to_ourselves(state: RoundState, led: Leading) -> RoundStep:
    """Our own promise goes to disk first: after a crash we lead no second attempt under the same ballot (R13)."""
    opened = replace(
        state.open,
        leading=led,
        promised=led.ballot,
        highest_attempt=max(state.open.highest_attempt, led.ballot.attempt),
        gathering=None,
    )
    what = "without a quorum" if led.lone_voters else f"of round {state.link.index + 1}"
    reason = f"leading attempt {led.ballot.attempt} {what}"
    return RoundStep(replace(state, open=opened), (LogPromise(state.link.commit, led.ballot, reason),), reason)


def own_promise_logged(state: RoundState, now_s: float) -> RoundStep:
    """Our promise is on disk: propose attempt 0, or ask the voters for their promises."""
    led = state.open.leading
    if led is None or led.stage != "promising" or led.is_promised:
        return RoundStep(state, remark="our own promise is on disk, and no attempt of ours waits for it")
    config = state.config
    led = replace(led, is_promised=True)
    if led.ballot.attempt == 0:
        return attempt.propose(replace(state, open=replace(state.open, leading=led)), now_s)
    state = replace(state, open=replace(state.open, leading=led))
    others = tuple(peer for peer in _voters(state, led) if peer != config.me.peer)
    pre_votes = tuple(raw for _, raw in sorted(led.pre_vote_envelopes.items()))
    request = PromiseRequest(config.unit, state.link.commit, led.ballot, pre_votes, lone=bool(led.lone_voters))
    why = f"attempt {led.ballot.attempt} is wanted: it needs the promises of a quorum"
    orders = (Send(others, request, why),) if others else ()
    if state.may_vote or led.lone_voters:  # to ourselves as to anybody else: others want to see our signature, too
        own = Promise(config.unit, state.link.commit, led.ballot, state.open.acked)
        orders = (*orders, Send((config.me.peer,), own, why))
    return RoundStep(state, orders, remark=why)


def promise(state: RoundState, sender: PeerId, message: Promise, raw: bytes, now_s: float) -> RoundStep:
    """A promise came in. With a quorum of them, finish the record that may be decided, or propose (R16)."""
    led = state.open.leading
    if led is None or led.stage != "promising" or not led.is_promised or message.ballot != led.ballot:
        return RoundStep(state, remark=_unasked(f"a promise of {short(sender)}", message.ballot, led))
    state = known_at_base(state, (sender,))
    envelopes = MappingProxyType({**led.promise_envelopes, sender: raw})
    led = replace(led, promises=MappingProxyType({**led.promises, sender: message}), promise_envelopes=envelopes)
    remark = f"{len(led.promises)} promised attempt {led.ballot.attempt}; expected a quorum"
    return _after_promises(RoundStep(replace(state, open=replace(state.open, leading=led)), remark=remark), now_s)


def _after_promises(step: RoundStep, now_s: float) -> RoundStep:
    state, led = step.state, step.state.open.leading
    if led is None:
        return step
    without_vote = {
        peer for peer in led.lone_voters if not has_vote(state, peer)
    }  # they ack a lone record, and promise nothing
    if not has_all_votes(state, led, frozenset({*led.promises, *without_vote})):
        return step
    acked = [(peer, message.acked) for peer, message in led.promises.items() if message.acked is not None]
    if not is_quorum(state.config.run_id, state.link.roster, led.promises):
        # else nothing lower was decided without one of these, nor ever will be: records acked by leavers need not be finished,
        # and may have gone with them
        acked += [(peer, leave.acked) for peer, leave in state.open.departures.items() if leave.acked is not None]
    # a record that nobody can apply was never decided, whoever claims to have acked it
    acked = [(peer, entry) for peer, entry in acked if not names_useless(entry.record, state.open.useless)]
    top = None if led.lone_voters else _to_finish(state, acked, led)
    if top is None:
        return _joined(step, attempt.propose(state, now_s))
    if not _is_ours(state, top) and now_s < led.deadline_s and _may_promise(state, led, now_s):
        return step  # their promises may show that it was not decided; nobody may have the bytes of a record that we did not ack
    holders = tuple(sorted(peer for peer, entry in acked if entry.record == top.record))
    return _joined(step, attempt.settle_again(state, top, holders, now_s))


def _to_finish(state: RoundState, acked: Acked, led: Leading) -> AckedRecord | None:
    """The acked record of the highest ballot that may be decided, or that we acked ourselves: its bytes are here."""
    found = (
        entry
        for _, entry in highest_first(acked)
        if _is_ours(state, entry) or may_be_decided(state, entry.record, acked, led.promises)
    )
    return next(found, None)


def _is_ours(state: RoundState, entry: AckedRecord) -> bool:
    return state.open.acked is not None and state.open.acked.record == entry.record


def _may_promise(state: RoundState, led: Leading, now_s: float) -> bool:
    """Whether a voter is here that did not promise yet."""
    missing = [peer for peer in state.link.roster if peer not in led.promises and has_vote(state, peer)]
    return any(not is_suspected(state, peer, now_s) for peer in missing)


def _joined(first: RoundStep, then: RoundStep) -> RoundStep:
    return RoundStep(then.state, (*first.actions, *then.actions), then.reason or first.reason)


# --- while leading ------------------------------------------------------------------------------------------------------------


def _tick_leading(state: RoundState, led: Leading, now_s: float) -> RoundStep:
    if led.stage == "asking":
        asked = _after_pre_votes(RoundStep(state), now_s)
        if asked.reason:
            return asked
    if led.stage == "promising" and led.is_promised:
        promised = _after_promises(RoundStep(state), now_s)
        if promised.reason:
            return promised
    if led.stage in ("asking", "promising"):
        if now_s < led.deadline_s:
            needed = "most members to want it" if led.stage == "asking" else "most members to promise it"
            return RoundStep(state, waiting=f"{attempt.leading_of(state, led)} waits for {needed}")
        if led.stage == "asking":
            return attempt.stood_back(state, now_s, "too few find the opener gone; waiting for it")
        return attempt.failed(state, now_s, f"attempt {led.ballot.attempt} ran out of time while promising")
    return attempt.tick(state, led, now_s)


def refused(state: RoundState, sender: PeerId, message: Refusal, now_s: float) -> RoundStep:
    """A voter promised a higher ballot. Stand back when those that did leave us no quorum, and start above them if they come to
    nothing. One alone may say so at every attempt: the others can commit without it, and its slices go to them.
    """
    opened, led = state.open, state.open.leading
    if message.promised == Ballot(LAST_ATTEMPT, sender):
        # It has no vote here, and never will: the others may be too few for a quorum, and then go on alone in their time.
        state = replace(state, open=replace(opened, voteless=opened.voteless | {sender}))
        return RoundStep(state, remark=f"{short(sender)} has no vote on this base: it left it, or lost its disk")
    state = replace(state, open=replace(opened, highest_attempt=max(opened.highest_attempt, message.promised.attempt)))
    if led is None or message.promised <= led.ballot:
        return RoundStep(state, remark=_unasked(f"a refusal of {short(sender)}", message.promised, led))
    reason = f"attempt {message.promised.attempt} of {short(message.promised.peer)} came first"
    led = replace(led, refusers=led.refusers | {sender})
    if not has_all_votes(state, led, frozenset(_voters(state, led)) - led.refusers):
        return attempt.failed(state, now_s, reason)
    state = replace(state, open=replace(state.open, leading=led))
    return RoundStep(state, remark=f"{short(sender)} says that {reason}; the others are a quorum without it")
