"""The opener's side of a round: open, collect results, settle one record, collect acks; or take over with promises first.

Every function takes the state and returns a Step; core.py calls them. An attempt that fails ends with its reason; the round
stays open on its base, nothing is dropped (rule 17).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId, short
from protocol.rounds.chain import link_after
from protocol.rounds.messages import (
    Ack,
    AckedRecord,
    Ballot,
    Certificate,
    Committed,
    Member,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    Settle,
    SliceSpec,
)
from protocol.rounds.plan import ReducerOffer, make_record, plan_slices, weight_cap
from protocol.rounds.quorum import first_opener, is_quorum, opener_order
from protocol.rounds.state import Leading, RoundState, Send, Step
from protocol.rounds.views import caught_up, idle_patience_s, is_alive, is_due, is_suspected
from protocol.wire import encode_record

RANK_DELAY_S: Final = 1.0
"""Rank r may take over after 2 s + r s without the opener (rule 6): two who think alike do not duel."""

MAX_BACKOFF_EXPONENT: Final = 16


def expected_opener(state: RoundState) -> PeerId:
    """Whom we expect to lead next: the leader of the running attempt, else the owner of attempt 0."""
    if state.open.proposal is not None:
        return state.open.proposal.ballot.peer
    return first_opener(state.link.commit, state.link.roster)


def tick(state: RoundState, now_s: float) -> Step:
    """Open, take over, or end an attempt that ran out of time."""
    if state.open.committing is not None:
        return Step(state)
    if state.open.leading is not None:
        return _tick_leading(state, state.open.leading, now_s)
    if not is_due(state, now_s) and state.open.proposal is None and state.open.acked is None:
        return Step(replace(state, open=replace(state.open, due_since_s=None)))
    if state.open.due_since_s is None:
        state = replace(state, open=replace(state.open, due_since_s=now_s))
    if not state.can_contribute or now_s < state.open.quiet_until_s:
        return Step(state)
    if _may_open_first(state):
        return _propose(state, Ballot(0, state.config.me.peer), now_s) if is_due(state, now_s) else Step(state)
    if _may_take_over(state, now_s):
        return _take_over(state, now_s)
    return Step(state)


def _may_open_first(state: RoundState) -> bool:
    """Attempt 0 is ours, and nobody, we ourselves before a crash included, has gone beyond it."""
    opened = state.open
    is_first = first_opener(state.link.commit, state.link.roster) == state.config.me.peer
    return is_first and opened.promised is None and opened.proposal is None and opened.acked is None


def _may_take_over(state: RoundState, now_s: float) -> bool:
    opened, config = state.open, state.config
    opener = expected_opener(state)
    rank = _rank(state, now_s)
    if opened.proposal is None:
        since_s = opened.due_since_s if opened.due_since_s is not None else now_s
        is_lost = opener != config.me.peer and not is_alive(state, opener, now_s, idle_patience_s(state))
        # an opener that answers but does not open lacks our view of the tokens, or is behind: give it twice as long
        wait_s = config.suspect_after_s * (1.0 if is_lost else 2.0) + rank * RANK_DELAY_S
        return now_s - since_s >= wait_s
    if opener == config.me.peer:  # our own attempt failed, or we restarted
        return True
    overdue_s = opened.proposal.reduce_within_s + config.settle_within_s
    if now_s - opened.proposal_at_s >= overdue_s + rank * RANK_DELAY_S:
        return True
    view = state.peers.get(opener)
    heard_at_s = max(view.heard_at_s if view is not None else 0.0, opened.proposal_at_s)
    if view is None or view.lost or view.left:
        return now_s - heard_at_s >= rank * RANK_DELAY_S
    return now_s - heard_at_s >= config.suspect_after_s + rank * RANK_DELAY_S


def _rank(state: RoundState, now_s: float) -> int:
    """Our place among the live, caught-up peers for the next attempt."""
    candidates = [view.peer for view in caught_up(state, now_s)] + [state.config.me.peer]
    order = opener_order(state.link.commit, state.open.highest_attempt + 1, candidates)
    return order.index(state.config.me.peer)


def _take_over(state: RoundState, now_s: float) -> Step:
    opened, config = state.open, state.config
    floor = opened.promised.attempt if opened.promised is not None else 0
    ballot = Ballot(max(opened.highest_attempt, floor) + 1, config.me.peer)
    led = Leading(ballot, "promising", now_s + config.promise_within_s)
    state = replace(state, open=replace(opened, leading=led, highest_attempt=ballot.attempt))
    voters = tuple(dict.fromkeys((*state.link.roster, config.me.peer)))
    request = PromiseRequest(config.unit, state.link.commit, ballot)
    return Step(state, (Send(voters, request),), f"taking over round {state.link.index + 1}, attempt {ballot.attempt}")


def promise(state: RoundState, sender: PeerId, message: Promise, now_s: float) -> Step:
    """A promise came in; with a quorum of them, finish what may be decided, or propose anew (rule 16)."""
    led = state.open.leading
    if led is None or led.stage != "promising" or message.ballot != led.ballot:
        return Step(state)
    promises = MappingProxyType({**led.promises, sender: message})
    state = replace(state, open=replace(state.open, leading=replace(led, promises=promises)))
    if not is_quorum(state.config.run_id, state.link.roster, promises.keys()):
        return Step(state)
    acked = [(peer, p.acked) for peer, p in promises.items() if p.acked is not None]
    if not acked:
        return _propose(state, led.ballot, now_s)
    top = max((entry for _, entry in acked), key=lambda entry: entry.ballot)
    holders = tuple(sorted(peer for peer, entry in acked if entry.record == top.record))
    return _settle_again(state, top, holders, now_s)


def _settle_again(state: RoundState, acked: AckedRecord, holders: tuple[PeerId, ...], now_s: float) -> Step:
    led = state.open.leading
    if led is None:
        return Step(state)
    commit = link_after(state.link, acked.record).commit
    settle = Settle(state.config.unit, state.link.commit, led.ballot, acked.record, holders)
    led = replace(led, stage="settling", settle=settle, commit=commit, deadline_s=now_s + state.config.settle_within_s)
    state = replace(state, open=replace(state.open, leading=led))
    to = tuple(dict.fromkeys((*state.link.roster, state.config.me.peer)))
    return Step(state, (Send(to, settle),), f"finishing the acked record of attempt {acked.ballot.attempt}")


# --- propose and settle -------------------------------------------------------------------------------------------------------


def _propose(state: RoundState, ballot: Ballot, now_s: float) -> Step:
    config = state.config
    others = caught_up(state, now_s)[: config.max_members - 1]
    members = {config.me.peer: config.me}
    members.update({view.peer: view.member for view in others if view.member is not None})
    if len(members) < config.min_members:
        return _attempt_failed(state, now_s, f"{len(members)} of at least {config.min_members} members are here")
    if not is_quorum(config.run_id, state.link.roster, members.keys()):
        return _attempt_failed(state, now_s, "no quorum of the base roster is caught up; training goes on")
    ready = [state.tokens_ready, *(v.head.tokens_ready for v in others if v.head is not None)]
    proposal = Proposal(
        unit=config.unit,
        base=state.link.commit,
        index=state.link.index + 1,
        ballot=ballot,
        members=tuple(m for _, m in sorted(members.items())),
        slices=_slices(state, members),
        codec=config.codec,
        weight_cap_tokens=weight_cap([tokens for tokens in ready if tokens > 0] or [1]),
        reduce_within_s=_reduce_within_s(state),
    )
    led = Leading(ballot, "collecting", now_s + proposal.reduce_within_s + config.suspect_after_s)
    state = replace(state, open=replace(state.open, leading=led))
    reason = f"opening round {proposal.index}, attempt {ballot.attempt}, with {len(members)} members"
    return Step(state, (Send(tuple(sorted(members)), proposal),), reason)


def _slices(state: RoundState, members: dict[PeerId, Member]) -> tuple[SliceSpec, ...]:
    config = state.config
    offers = [
        ReducerOffer(peer, state.peers[peer].upload_bytes_per_s)
        for peer in members
        if peer != config.me.peer and state.peers[peer].is_inbound_reachable and peer not in state.open.unfit
    ]
    if config.is_inbound_reachable or not offers:
        offers.append(ReducerOffer(config.me.peer, state.upload_bytes_per_s))
    return plan_slices(config.num_chunks, offers, len(members))


def _reduce_within_s(state: RoundState) -> float:
    """Doubled at each failed attempt up to the longest interval (rule 11)."""
    doubled = state.config.reduce_within_s * 2.0 ** min(state.open.num_failed, MAX_BACKOFF_EXPONENT)
    return max(state.config.reduce_within_s, min(doubled, state.config.longest_interval_s))


def results_changed(state: RoundState, now_s: float) -> Step:
    """A result arrived at the leader: settle when every slice has one (rule 13)."""
    led, proposal = state.open.leading, state.open.proposal
    if led is None or proposal is None or led.stage != "collecting" or proposal.ballot != led.ballot:
        return Step(state)
    headers = [state.open.results.get(part.first_chunk) for part in proposal.slices]
    results = [header for header in headers if header is not None]
    if len(results) < len(proposal.slices):
        return Step(state)
    config = state.config
    roster = [m.peer for m in proposal.members if not is_suspected(state, m.peer, now_s)]
    record = encode_record(
        make_record(state.link, proposal, led.ballot, results, roster, config.outer, config.target_tokens)
    )
    settle = Settle(config.unit, state.link.commit, led.ballot, record, ())
    commit = link_after(state.link, record).commit
    led = replace(led, stage="settling", settle=settle, commit=commit, deadline_s=now_s + config.settle_within_s)
    state = replace(state, open=replace(state.open, leading=led))
    to = tuple(sorted({m.peer for m in proposal.members} | set(state.link.roster)))
    return Step(state, (Send(to, settle),), f"settling round {proposal.index}: every slice has a result")


def ack(state: RoundState, sender: PeerId, message: Ack, raw: bytes) -> Step:
    """An ack came in; with a quorum of them the commit exists (rule 15)."""
    led = state.open.leading
    if led is None or led.settle is None or message.ballot != led.ballot or message.commit != led.commit:
        return Step(state)
    acks = MappingProxyType({**led.acks, sender: raw})
    state = replace(state, open=replace(state.open, leading=replace(led, acks=acks)))
    if not is_quorum(state.config.run_id, state.link.roster, acks.keys()):
        return Step(state)
    voters = [peer for peer in state.link.roster if peer in acks]
    certificate = Certificate(led.settle.record, tuple(acks[peer] for peer in sorted(voters)))
    # Told to ourselves like to anybody else: one path applies commits.
    committed = Committed(state.config.unit, certificate)
    return Step(
        state, (Send((state.config.me.peer,), committed),), f"round {state.link.index + 1} has {len(voters)} acks"
    )


# --- when an attempt ends -----------------------------------------------------------------------------------------------------


def _tick_leading(state: RoundState, led: Leading, now_s: float) -> Step:
    proposal = state.open.proposal
    if led.stage == "collecting" and proposal is not None and proposal.ballot == led.ballot:
        missing = [part.reducer for part in proposal.slices if part.first_chunk not in state.open.results]
        if now_s >= led.deadline_s:
            unfit = tuple(sorted({*state.open.unfit, *missing} - {state.config.me.peer}))
            state = replace(state, open=replace(state.open, unfit=unfit))
        dead = [peer for peer in missing if is_suspected(state, peer, now_s)]
        if dead:
            return _attempt_failed(
                state, now_s, f"reducer {short(dead[0])} is gone; its slice is given to others", wait_s=0.0
            )
    if now_s < led.deadline_s:
        return Step(state)
    return _attempt_failed(state, now_s, f"attempt {led.ballot.attempt} ran out of time while {led.stage}")


def _attempt_failed(state: RoundState, now_s: float, reason: str, wait_s: float | None = None) -> Step:
    opened = state.open
    num_failed = opened.num_failed + 1
    backoff_s = min(2.0 ** min(num_failed, MAX_BACKOFF_EXPONENT), state.config.longest_interval_s)
    opened = replace(
        opened,
        leading=None,
        num_failed=num_failed,
        quiet_until_s=now_s + (backoff_s if wait_s is None else wait_s),
    )
    return Step(replace(state, open=opened), (), reason)


def refused(state: RoundState, message: Refusal, now_s: float) -> Step:
    """Somebody promised a higher ballot: stand back, and start above it if it comes to nothing."""
    opened, led = state.open, state.open.leading
    state = replace(state, open=replace(opened, highest_attempt=max(opened.highest_attempt, message.promised.attempt)))
    if led is None or message.promised <= led.ballot:
        return Step(state)
    return _attempt_failed(
        state, now_s, f"attempt {message.promised.attempt} of {short(message.promised.peer)} came first"
    )
