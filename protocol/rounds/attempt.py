"""One attempt as its leader drives it: propose, mend, settle one record, collect acks, or end with a reason (R7, R11 to R15).

An attempt that fails ends with its reason; the round stays open on its base, nothing is dropped (R17).

Rules: R6, R7, R11, R12, R13, R14, R15, R16, R17, R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.rounds.expulsion import convict
from protocol.rounds.failure_probes import is_large
from protocol.rounds.lineage.chain import is_evidence, link_after
from protocol.rounds.lineage.compact import compacted
from protocol.rounds.lineage.double_votes import two_claims
from protocol.rounds.lineage.quorum import electorate, is_quorum
from protocol.rounds.lineage.record_rules import (
    SignatureCheck,
    low_cap_problem,
    may_vote_next,
    record_problem,
    weight_cap,
)
from protocol.rounds.lineage.rule_numbers import cap_factor_of
from protocol.rounds.lineage.stranger_weights import weights_of
from protocol.rounds.messages.bounds import MAX_SLICES, MAX_TOKENS
from protocol.rounds.messages.messages import (
    Ack,
    AckedRecord,
    Certificate,
    Committed,
    Member,
    Mend,
    Proposal,
    ResultHeader,
    Settle,
    SliceSpec,
)
from protocol.rounds.messages.record import NO_SPINE
from protocol.rounds.messages.wire import encode_record
from protocol.rounds.orders import Action, GiveTime, Send
from protocol.rounds.participants import (
    MAX_BACKOFF_EXPONENT,
    brought_before,
    expected_tokens,
    handing_on,
    others_here,
    proposed_within_s,
    reduce_within_s,
    reducer_offers,
    settle_within_s,
    voters_at_hand,
    with_voters,
    withholders,
    without_slices,
)
from protocol.rounds.queries import (
    due_at_tokens,
    is_suspected,
    may_hand_on,
    quorum_in_reach,
    ready_tokens,
    trusted_peers,
    until_first_unit,
)
from protocol.rounds.schedule.outer_rule import outer_of_round, turns_of_base
from protocol.rounds.schedule.proposal import make_record, mend_slices, plan_slices
from protocol.rounds.schedule.target import MeasuredRound
from protocol.rounds.state import Leading, RoundState, RoundStep

STAND_BACK_S: Final = 1.0
GROWS: Final = 1.1
"""Slices are given more time only when it grows by this factor: the forecast of an upload's end changes at each tick."""

GONE_GRACE_S: Final = 0.5
"""A peer that holds all bytes of a settled record has acked after this time. A reducer suspected by then will not bring them."""

NOT_LEADING: Final = "no attempt of ours is under way"


def propose(state: RoundState, now_s: float) -> RoundStep:
    """Plan the attempt that we lead and send its proposal to the members (R7)."""
    led, config = state.open.leading, state.config
    if led is None:
        return RoundStep(state, remark=NOT_LEADING)
    others = others_here(state, led, now_s)
    if 1 + len(others) < config.min_members:
        return stood_back(state, now_s, f"{1 + len(others)} of at least {config.min_members} members are here")
    if not led.lone_voters and not quorum_in_reach(state, led.ballot, now_s):
        return stood_back(state, now_s, "too few members of the last round answer; training goes on")
    peers = frozenset([config.me.peer, *(view.peer for view in others)])
    if not led.lone_voters and not may_hand_on(state, led.ballot, handing_on(state, peers, now_s), now_s):
        return stood_back(state, now_s, f"{len(peers)} peers are caught up, too few members of the last round")
    here = {config.me.peer: config.me}
    here.update({view.peer: view.member for view in others if view.member is not None})
    members = here | brought_before(state, led, here)
    proposal = Proposal(
        unit=config.unit,
        base=state.link.commit,
        index=state.link.index + 1,
        ballot=led.ballot,
        members=tuple(m for _, m in sorted(members.items())),
        slices=_slices(state, here, now_s),
        codec=config.codec,
        weight_cap_tokens=min(MAX_TOKENS, _cap(state, members)),
        reduce_within_s=proposed_within_s(state, others),
        lone=bool(led.lone_voters),
        spine=NO_SPINE if state.spine is None else state.spine.head,
        result_codec=config.result_codec,
        pre_votes=tuple(raw for _, raw in sorted(led.pre_vote_envelopes.items())),
    )
    led = replace(led, stage="collecting", deadline_s=_collect_until_s(state, proposal.reduce_within_s, now_s))
    state = replace(state, open=replace(state.open, leading=led))
    alone = "alone, " if led.lone_voters else ""
    reason = f"opening round {proposal.index}, attempt {led.ballot.attempt}, {alone}with {len(members)} members"
    return RoundStep(state, (Send(tuple(sorted(proposal.participants)), proposal, reason),), reason)


def _cap(state: RoundState, members: Mapping[PeerId, Member]) -> int:
    """The weight cap by the tokens that these members are expected to have."""
    tokens, link = expected_tokens(state, trusted_peers(state, members)), state.link
    return weight_cap(tokens, link.target_tokens, cap_factor_of(link.rules))


def _collect_until_s(state: RoundState, reduce_within_s: float, now_s: float) -> float:
    return now_s + reduce_within_s + state.config.suspect_after_s


def _slices(state: RoundState, members: Mapping[PeerId, Member], now_s: float) -> tuple[SliceSpec, ...]:
    """Reuse the slices of the previous attempt while their reducers are still there: scattered chunks are not sent again (R16)."""
    offers = reducer_offers(state, members, now_s)
    before = state.open.proposal
    if before is None:
        return plan_slices(state.config.num_chunks, offers, len(members))
    fit = {offer.peer for offer in offers}
    return mend_slices(before.slices, [part for part in before.slices if part.reducer not in fit], offers)


# --- results, mending, settling -----------------------------------------------------------------------------------------------


def results_changed(state: RoundState, now_s: float) -> RoundStep:
    """A result arrived at the leader: settle when the bytes of every slice's result are here (R13). A record that names bytes which
    nobody can give costs a whole attempt, and another sum of the slice costs little.
    """
    led, proposal = state.open.leading, state.open.proposal
    if led is None or proposal is None or led.stage != "collecting" or proposal.ballot != led.ballot:
        return RoundStep(state, remark="a result is here; the leader of its attempt settles")
    headers = [state.open.results.get(part.first_chunk) for part in proposal.slices]
    # a meaningless result stays in its place until the mend that gives its slice to another has come to us, too
    results = [header for header in headers if header is not None and header.result_hash not in state.open.useless]
    if len(results) < len(proposal.slices):
        return RoundStep(
            state, remark=f"{len(results)} of {len(proposal.slices)} results are here; expected all before settling"
        )
    missing = [part for part in proposal.slices if part.first_chunk not in state.open.held]
    lost = [part for part in missing if is_suspected(state, part.reducer, now_s)]
    if lost:
        return give_away(state, led, proposal, lost, now_s)
    if missing:  # an announced result may never come; a record must not name bytes that nobody can give
        waited = f"the bytes of {len(proposal.slices) - len(missing)} of {len(proposal.slices)} results are here"
        return RoundStep(state, remark=f"{waited}; expected all before settling")
    return _settle(state, led, proposal, results, now_s)


def _settle(
    state: RoundState, led: Leading, proposal: Proposal, results: Sequence[ResultHeader], now_s: float
) -> RoundStep:
    """Every slice has a result and its bytes are here: make the record and send it."""
    config, check = state.config, SignatureCheck(state.config.verifier, state.config.run_id)
    claims = two_claims(results, proposal, check)
    convicted = convict(state, (claims,) if claims is not None else ())
    if convicted.actions:
        ended = failed(convicted.state, now_s, convicted.reason, wait_s=0.0)
        return RoundStep(ended.state, convicted.actions, ended.reason)
    alive = [m.peer for m in proposal.members if led.lone_voters or not is_suspected(state, m.peer, now_s)]
    roster = frozenset(state.link.roster)
    counted = [entry for header in results for entry in header.included]
    voteless = frozenset(entry.peer for entry in counted if not may_vote_next(roster, entry, check))
    voters = dataclasses.replace(voters_at_hand(state, alive, now_s), voteless=voteless)
    offers = {entry.peer: entry for entry in counted}.values()
    offered = sum(weights_of([e.tokens for e in offers], [e.is_stranger for e in offers], MAX_TOKENS))
    until_first = until_first_unit(state, now_s)
    if until_first is not None:  # from now: tokens trained since the snapshots belong to the next round already
        until_first += ready_tokens(state, now_s) - offered
    whole = _next_target(state, offered, len(alive), now_s)
    target = config.stagger.next_target(whole, due_at_tokens(state), offered, until_first)
    turns = turns_of_base(config.outer, state.tree.behind(state.link.commit))
    outer = outer_of_round(config.outer, config.momentum_from_tokens, state.link, turns)
    record = make_record(state.link, proposal, led.ballot, results, voters, outer, target)
    problem = record_problem(state.link, record, check, voters.left) or low_cap_problem(
        state.link, record, trusted_peers(state, [member.peer for member in proposal.members])
    )
    if problem:  # nobody would ack it: another attempt plans with what is known now
        return failed(state, now_s, f"no record can be made of these results: {problem}")
    leaves = tuple(signed.raw for _, signed in sorted(state.open.leaves.items()))
    promises = tuple(raw for _, raw in sorted(led.promise_envelopes.items()))
    settle = Settle(config.unit, state.link.commit, led.ballot, encode_record(record), (), leaves, promises)
    reason = f"settling round {proposal.index}: every slice has a result"
    return _settling(state, settle, _settled_to(state, led, proposal), now_s, reason)


def _settled_to(state: RoundState, led: Leading, proposal: Proposal) -> tuple[PeerId, ...]:
    """The peers that get the record: the voters, whose acks make the certificate, and where peers are few, all members, which then
    have the bytes early. In a large run the members have turns, and the record is long, for it proves the admission of each.
    """
    members = {m.peer for m in proposal.members}
    if led.lone_voters:
        return tuple(sorted(members))
    early = {state.config.me.peer} if is_large(state) else members
    return tuple(sorted(early | set(state.link.roster)))


def _next_target(state: RoundState, offered_tokens: int, num_members: int, now_s: float) -> int:
    """Ready tokens at which the round after this one is due, by the manifest and by what we measured of this one."""
    config = state.config
    if state.proposed_at_s:  # from one proposal to the next; the exchange includes its results
        round_s, done_s = state.open.proposal_at_s - state.proposed_at_s, state.committed_at_s
        proposed_s, snapshot_s = state.proposed_at_s, state.snapshot_at_s
    else:
        round_s, done_s = now_s - state.committed_at_s, now_s
        proposed_s, snapshot_s = state.open.proposal_at_s, state.open.snapshot_at_s
    # where training waits, it waits from the snapshot on: the running local step is finished before
    exchange_s = done_s - (max(proposed_s, snapshot_s) if config.target.is_blocking else proposed_s)
    measured = MeasuredRound(state.link.target_tokens, offered_tokens, round_s, exchange_s, config.heartbeat_s)
    return config.target.after(state.link.total_tokens + offered_tokens, num_members, measured)


def nothing_to_sum(state: RoundState, header: ResultHeader, now_s: float) -> RoundStep:
    """A reducer reports that no live member has anything to offer. Waiting would not change that, so the attempt ends. If we offer
    something ourselves, or will, the reducer cannot get our contribution, and its slice goes to another.
    """
    led, proposal = state.open.leading, state.open.proposal
    if led is None or proposal is None or led.stage != "collecting" or proposal.ballot != led.ballot:
        return RoundStep(state, remark="a slice without contributions; the leader of its attempt decides")
    if state.open.contribution is None and not state.open.is_preparing:
        return failed(state, now_s, f"no live member of attempt {led.ballot.attempt} has anything to offer")
    lost = [part for part in proposal.slices if part.first_chunk == header.first_chunk]
    return _mend(state, led, proposal, lost, now_s)


def settle_again(state: RoundState, acked: AckedRecord, holders: tuple[PeerId, ...], now_s: float) -> RoundStep:
    """Settle a record that a quorum may have acked again, byte for byte, under our ballot (R16)."""
    led = state.open.leading
    if led is None:
        return RoundStep(state, remark=NOT_LEADING)
    promises = tuple(raw for _, raw in sorted(led.promise_envelopes.items()))
    leaves = tuple(signed.raw for _, signed in sorted(state.open.leaves.items()))
    settle = Settle(state.config.unit, state.link.commit, led.ballot, acked.record, holders, leaves, promises)
    to = tuple(dict.fromkeys((*state.link.roster, state.config.me.peer)))
    return _settling(state, settle, to, now_s, f"finishing the acked record of attempt {acked.ballot.attempt}")


def give_time(state: RoundState) -> RoundStep:
    """Extend the deadline of our own slices when they may wait longer. Reducers that do not hold the unit get no heartbeats of it:
    the leader sends them its proposal again with the longer time.
    """
    opened, proposal = state.open, state.open.proposal
    if proposal is None or opened.exchange != proposal.ballot:
        return RoundStep(state)
    within_s, before_s = reduce_within_s(state), max(proposal.reduce_within_s, opened.told.reduce_within_s)
    if within_s < GROWS * before_s:
        return RoundStep(state)
    reason = f"slices wait {within_s:.0f} s: an upload takes longer than was known when they were proposed"
    state = replace(state, open=replace(opened, told=replace(opened.told, reduce_within_s=within_s)))
    orders: tuple[Action, ...] = (GiveTime(proposal.ballot, within_s, reason),)
    external = _external_reducers(proposal, proposal.slices)
    if external and opened.leading is not None and opened.leading.ballot == proposal.ballot:
        orders = (*orders, Send(external, dataclasses.replace(proposal, reduce_within_s=within_s), reason))
    return RoundStep(state, orders, reason)


def _settling(state: RoundState, settle: Settle, to: tuple[PeerId, ...], now_s: float, reason: str) -> RoundStep:
    led = state.open.leading
    if led is None:
        return RoundStep(state, remark=NOT_LEADING)
    commit = link_after(state.link, settle.record).commit
    deadline_s = now_s + settle_within_s(state)
    led = replace(led, stage="settling", settle=settle, settled_s=now_s, commit=commit, deadline_s=deadline_s)
    return RoundStep(replace(state, open=replace(state.open, leading=led)), (Send(to, settle, reason),), reason)


def tick(state: RoundState, led: Leading, now_s: float) -> RoundStep:
    """Watch the attempt: give the slices of dead and late reducers to others, and end it when nothing helps."""
    if led.stage == "collecting":
        return _tick_collecting(state, led, now_s)
    proposal = state.open.proposal
    if proposal is not None and proposal.ballot == led.ballot and _are_bytes_lost(state, led, proposal, now_s):
        return failed(state, now_s, "a reducer died with the only copy of its result", wait_s=0.0)
    if now_s < _acks_until_s(state, led):
        return RoundStep(state, waiting=f"{leading_of(state, led)} waits for most members to confirm the round")
    return failed(with_voters(state, led), now_s, f"attempt {led.ballot.attempt} ran out of time while settling")


def left_s(state: RoundState, now_s: float) -> float:
    """Seconds that we still give the attempt that we lead if nothing comes of it; 0 where none of ours is proposed. Others may
    expect less: they learn of uploads later, and do not know that our machine slept.
    """
    led = state.open.leading
    if led is None or led.stage not in ("collecting", "settling"):
        return 0.0
    if led.stage == "collecting":
        proposal = state.open.proposal
        until_s = led.deadline_s if proposal is None else _results_until_s(state, led, proposal)
        return max(0.0, until_s - now_s) + settle_within_s(state)
    return max(0.0, _acks_until_s(state, led) - now_s)


def _results_until_s(state: RoundState, led: Leading, proposal: Proposal) -> float:
    """Reducers give more time to a line that became thin, so the leader does too."""
    return led.deadline_s + reduce_within_s(state) - proposal.reduce_within_s


def _acks_until_s(state: RoundState, led: Leading) -> float:
    """A line that turns out to be thin after the record was settled gets more time, too."""
    return max(led.deadline_s, led.settled_s + settle_within_s(state))


def leading_of(state: RoundState, led: Leading) -> str:
    """The attempt that this peer leads, as words for a sentence."""
    return f"attempt {led.ballot.attempt} of round {state.link.index + 1}, which we lead,"


def _are_bytes_lost(state: RoundState, led: Leading, proposal: Proposal, now_s: float) -> bool:
    """Nobody acked, so perhaps nobody holds all bytes, and a holder of some is gone. Another attempt, with promises, finds out."""
    if led.acks:
        return False
    return now_s - led.settled_s >= GONE_GRACE_S and any(
        is_suspected(state, part.reducer, now_s) for part in proposal.slices
    )


def _tick_collecting(state: RoundState, led: Leading, now_s: float) -> RoundStep:
    proposal = state.open.proposal
    if proposal is None or proposal.ballot != led.ballot:  # our own proposal is still on its way to us
        if now_s >= led.deadline_s:
            return failed(state, now_s, "the attempt did not begin")
        return RoundStep(state, waiting=f"{leading_of(state, led)} waits for its own proposal")
    missing = [part for part in proposal.slices if part.first_chunk not in state.open.held]
    unsummed = [part for part in missing if part.first_chunk not in state.open.results]
    late_s = now_s - _results_until_s(state, led, proposal)
    # an announced result may take as long again: its reducer sends it to all members, on the line that the deadline was made for
    late = missing if late_s >= reduce_within_s(state) else unsummed if late_s >= 0.0 else []
    away = {part.reducer for part in missing if is_suspected(state, part.reducer, now_s)}
    lost = [part for part in missing if part in late or part.reducer in away | led.refusers]
    if not lost:
        return RoundStep(state, waiting=f"{leading_of(state, led)} waits for results of its reducers")
    if 2 * len(missing) <= len(
        proposal.slices
    ):  # others were in time: these may let each round wait for its whole deadline
        state = without_slices(state, {part.reducer for part in late} - away)
    return give_away(state, led, proposal, lost, now_s)


def give_away(
    state: RoundState, led: Leading, proposal: Proposal, lost: list[SliceSpec], now_s: float, why: str = ""
) -> RoundStep:
    """Take slices from reducers that are gone, late, or wrong as `why` says. They get none in our next attempts either (R7)."""
    unfit = {part.reducer for part in lost} - {state.config.me.peer}
    state = without_slices(state, withholders(state, lost, now_s))
    state = replace(state, open=replace(state.open, unfit=tuple(sorted({*state.open.unfit, *unfit}))))
    return _mend(state, led, proposal, lost, now_s, why)


def _mend(
    state: RoundState, led: Leading, proposal: Proposal, lost: list[SliceSpec], now_s: float, why: str = ""
) -> RoundStep:
    """Give slices to other reducers; only moved slices are sent again (R12)."""
    why = why or _what_is_wrong(state, lost[0], now_s)
    alive = {m.peer: m for m in proposal.members if not is_suspected(state, m.peer, now_s)}
    offers = [
        offer for offer in reducer_offers(state, alive, now_s) if all(offer.peer != part.reducer for part in lost)
    ]
    revision = state.open.revision + 1
    if not offers or revision >= min(MAX_SLICES, len(proposal.members) + 1):
        return failed(state, now_s, f"{why} and nobody can take its slice")
    mend = Mend(proposal.unit, proposal.base, proposal.ballot, revision, mend_slices(proposal.slices, lost, offers))
    led = replace(led, deadline_s=_collect_until_s(state, proposal.reduce_within_s, now_s))
    state = replace(state, open=replace(state.open, leading=led))
    reason = f"{why}; its slice is given to others"
    external = _external_reducers(proposal, mend.slices)
    orders: tuple[Action, ...] = (Send(tuple(m.peer for m in proposal.members), mend, reason),)
    if external:  # they may not know the proposal yet
        updated = dataclasses.replace(proposal, slices=mend.slices, reduce_within_s=reduce_within_s(state))
        orders = (*orders, Send(external, updated, reason))
    return RoundStep(state, orders, reason)


def _what_is_wrong(state: RoundState, part: SliceSpec, now_s: float) -> str:
    """Do not call a reducer gone that was only slow: a host finds lines that are too thin by these words."""
    is_announced = part.first_chunk in state.open.results
    late = "announced a result that did not come here" if is_announced else "is late or has nothing to sum"
    return f"reducer {short(part.reducer)} {'is gone' if is_suspected(state, part.reducer, now_s) else late}"


def _external_reducers(proposal: Proposal, slices: Sequence[SliceSpec]) -> tuple[PeerId, ...]:
    """Reducers that are no members, by these slices or the earlier ones: the latter must be told that they reduce nothing now."""
    reducers = {part.reducer for part in (*proposal.slices, *slices)}
    return tuple(sorted(peer for peer in reducers if proposal.member(peer) is None))


# --- acks, and how an attempt ends --------------------------------------------------------------------------------------------


def ack(state: RoundState, sender: PeerId, message: Ack, raw: bytes) -> RoundStep:
    """An ack came in. With a quorum of them the commit exists (R15), a lone one with everybody's (R18)."""
    led, leave = state.open.leading, state.open.leaves.get(sender)
    earlier = [led.acks[sender]] if led is not None and led.acks.get(sender, raw) != raw else []
    convicted = convict(state, ((each, raw) for each in (*earlier, *([leave.raw] if leave is not None else ()))))
    if convicted.actions:
        return convicted
    is_ours = led is not None and message.ballot == led.ballot and message.commit == led.commit
    if (
        led is None
        or led.settle is None
        or not is_ours
        or not is_evidence(message, link_after(state.link, led.settle.record))
    ):
        expected = "none: nothing of ours is settled"
        if led is not None and led.settle is not None:
            expected = f"attempt {led.ballot.attempt}, one record"
        found = f"{short(sender)} acked attempt {message.ballot.attempt} of {short(message.ballot.peer)}"
        return RoundStep(state, remark=f"{found}, commit {short(message.commit)}; expected {expected}")
    led = replace(led, acks=MappingProxyType({**led.acks, sender: raw}))
    return certify(replace(state, open=replace(state.open, leading=led)))


def certify(state: RoundState) -> RoundStep:
    """Make the certificate if the acks suffice. Called after each ack, and after each goodbye, which makes the quorum smaller."""
    led = state.open.leading
    if led is None or led.settle is None:
        return RoundStep(state, remark=NOT_LEADING)
    if state.open.committing is not None:
        return RoundStep(state, remark="a commit is being applied already; no more acks are needed")
    certificate = _certificate(state, led, led.settle)
    if certificate is None:
        return RoundStep(
            state, remark=f"{len(led.acks)} acks are here; expected {'all' if led.lone_voters else 'a quorum'}"
        )
    # Sent to ourselves as to anybody else: one path applies commits.
    committed = Committed(state.config.unit, certificate)
    reason = f"round {state.link.index + 1} has {certificate.num_acks} votes"
    return RoundStep(state, (Send((state.config.me.peer,), committed, reason),), reason)


def _certificate(state: RoundState, led: Leading, settle: Settle) -> Certificate | None:
    link, run_id = link_after(state.link, settle.record), state.config.run_id
    if link.is_lone:
        if set(link.roster) - led.acks.keys():
            return None
        return compacted(Certificate(settle.record, tuple(led.acks[peer] for peer in sorted(link.roster))), run_id)
    voters = electorate(state.link.roster, led.ballot, state.open.departures)
    if not is_quorum(run_id, voters, led.acks.keys()):
        return None
    # a goodbye that promised a higher ballot leaves its voter in the electorate; the record may have dropped it all the same
    gone = [peer for peer in state.open.leaves if peer not in voters or peer not in link.roster]
    leaves = tuple(state.open.leaves[peer].raw for peer in sorted(gone))
    acks = tuple(led.acks[peer] for peer in sorted(voters) if peer in led.acks)
    return compacted(Certificate(settle.record, acks, leaves), run_id)


def failed(state: RoundState, now_s: float, reason: str, wait_s: float | None = None) -> RoundStep:
    """The attempt ends, and our next one waits longer (R6)."""
    opened = state.open
    num_failed = opened.num_failed + 1
    backoff_s = min(2.0 ** min(num_failed, MAX_BACKOFF_EXPONENT), state.config.longest_interval_s)
    quiet_until_s = now_s + (backoff_s if wait_s is None else wait_s)
    opened = replace(opened, leading=None, num_failed=num_failed, quiet_until_s=quiet_until_s)
    return RoundStep(replace(state, open=opened), (), reason)


def stood_back(state: RoundState, now_s: float, reason: str) -> RoundStep:
    """No attempt was made; ask again a little later."""
    opened = replace(state.open, leading=None, quiet_until_s=now_s + STAND_BACK_S)
    return RoundStep(replace(state, open=opened), (), reason)
