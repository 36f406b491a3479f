"""One round after another of one unit at one peer, as a pure machine: `step(state, event, now) -> RoundStep`.

This module dispatches every event and holds the member's side of an exchange. Votes are in voting.py, time and signs of life in
liveness.py, the leader's side in leading.py and attempt.py, certificates and lineages in following.py. Together they are
single-decree Paxos on each base commit. The first opener of the base roster owns attempt 0, whose ballot is the lowest and needs no
promises of others. Any other leader asks, collects promises, and finishes what may already be decided. A commit exists when more
than half of the base roster has, on disk, all bytes that its record names and an ack in one ballot.

Rules: R4, R12, R19, R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from protocol.errors import LocalProtocolError, RemoteProtocolError, VersionError
from protocol.frozen import replace
from protocol.ids import PeerId, Root, short
from protocol.rounds import attempt, following, leading, liveness, voting
from protocol.rounds import bad_results as refusing
from protocol.rounds.ballot_proofs import MOST_BYTES, consent_problem
from protocol.rounds.events import (
    AckLogged,
    ApartNoted,
    Applied,
    BytesHeld,
    CommitsFetched,
    CommitStalled,
    ContributionFailed,
    ContributionReady,
    Event,
    ExchangeMeasured,
    FlipOrdered,
    LeaveLogged,
    LeaveOrdered,
    MessageArrived,
    PeerLost,
    PeersAnswered,
    PeersListed,
    Progressed,
    PromiseLogged,
    ResultRefused,
    RoundTicked,
    SpineMoved,
    SumProven,
    SumWithheld,
    Switched,
    SwitchFailed,
    SwitchPrepared,
)
from protocol.rounds.expulsion import accused
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree, SpineView, Standing, tree_of
from protocol.rounds.messages.messages import (
    Ack,
    Committed,
    DoubleVote,
    FalseSum,
    Heartbeat,
    Leave,
    Mend,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    ResultReady,
    Settle,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, NO_SPINE, Ballot
from protocol.rounds.orders import Action, AnswerWithCertificate, BeginExchange, PrepareContribution
from protocol.rounds.participants import ask_left_out, doubting_leader, held_because
from protocol.rounds.queries import base_opener
from protocol.rounds.schedule.proposal import both_codecs
from protocol.rounds.state import (
    AnnouncedTimes,
    Contribution,
    LeaderAttempts,
    OpenRound,
    Pulse,
    RoundConfig,
    RoundState,
    RoundStep,
)

MAX_ATTEMPT_JUMP: Final = 1024
"""A ballot this far above all that we heard of is refused: it would use up the numbers that honest attempts need."""


def start(
    config: RoundConfig,
    link: ChainLink,
    now_s: float,
    *,
    state_root: Root,
    open_round: OpenRound | None = None,
    tree: CommitTree | None = None,
    spine: SpineView | None = None,
) -> RoundState:
    """The machine at a verified head.

    `open_round` is the log's state of the round on it (R19), `tree` all verified commits, `spine` the run's own lineage where that
    is another unit (R23).

    Raises:
        LocalProtocolError: this unit is not the spine, and nothing is known of the spine.
    """
    if config.is_spine != (spine is None):
        raise LocalProtocolError(
            f"unit {config.unit} {'with' if spine else 'without'} a spine", "what its place asks for"
        )
    return RoundState(
        config=config,
        link=link,
        tree=tree or tree_of(link),
        peers=MappingProxyType({}),
        open=open_round or OpenRound(),
        committed_at_s=now_s,
        state_commit=link.commit,
        state_root=state_root,
        spine=spine,
        pulse=Pulse(started_at_s=now_s),
    )


def step(state: RoundState, event: Event, now_s: float) -> RoundStep:
    """Take one event; return the new state, the orders, and why."""
    if isinstance(event, RoundTicked):
        return _ticked(state, event, now_s)
    state = liveness.awake(state, now_s)
    match event:
        case MessageArrived():
            return _message(state, event, now_s)
        case PeersAnswered():
            return RoundStep(liveness.answered(state, event))
        case PeerLost():
            return liveness.peer_lost(state, event, now_s)
        case PeersListed():
            return liveness.peers_listed(state, event, now_s)
        case ApartNoted(is_apart):
            return liveness.apart_noted(state, is_apart)
        case Progressed():
            return RoundStep(_progressed(state, event))
        case ExchangeMeasured():
            return RoundStep(replace(state, exchange_s=event.seconds))
        case ResultRefused() | SumProven() | SumWithheld():
            return refusing.result_refused(state, event, now_s)
        case ContributionReady() | ContributionFailed():
            return _contribution_settled(state, event, now_s)
        case BytesHeld() | AckLogged() | PromiseLogged() | LeaveOrdered() | LeaveLogged():
            return _voted(state, event, now_s)
        case _:
            return _followed(state, event, now_s)


def _voted(
    state: RoundState, event: BytesHeld | AckLogged | PromiseLogged | LeaveOrdered | LeaveLogged, now_s: float
) -> RoundStep:
    match event:
        case BytesHeld():
            return voting.bytes_held(state, event)
        case AckLogged():
            return voting.ack_logged(state, event)
        case PromiseLogged():
            return voting.promise_logged(state, event, now_s)
        case LeaveOrdered():
            return liveness.leaving_soon(state, now_s) if event.is_soon else voting.leave_ordered(state, event)
        case LeaveLogged():
            return voting.leave_logged(state, event)


_Followed = (
    Applied | CommitStalled | CommitsFetched | SwitchPrepared | SwitchFailed | Switched | SpineMoved | FlipOrdered
)


def _followed(state: RoundState, event: _Followed, now_s: float) -> RoundStep:
    match event:
        case Applied():
            return following.applied(state, event, now_s)
        case CommitStalled():
            return following.stalled(state, event, now_s)
        case CommitsFetched():
            return following.commits_fetched(state, event, now_s)
        case SwitchPrepared():
            return following.switch_prepared(state, event, now_s)
        case SwitchFailed():
            return following.switch_failed(state, event, now_s)
        case Switched():
            return following.switched(state, event, now_s)
        case SpineMoved():
            return following.spine_moved(state, event, now_s)
        case FlipOrdered():
            return following.flip_ordered(state, event)


def _ticked(state: RoundState, event: RoundTicked, now_s: float) -> RoundStep:
    ticked = liveness.ticked(state, event, now_s)
    if not ticked.state.missing:
        return ticked
    looked = following.look_again(ticked.state, now_s)
    orders = (*ticked.actions, *looked.actions)
    return RoundStep(
        looked.state, orders, ticked.reason or looked.reason, looked.remark or ticked.remark, ticked.waiting
    )


def _progressed(state: RoundState, event: Progressed) -> RoundState:
    return replace(
        state,
        tokens_ready=event.tokens_ready,
        can_contribute=event.can_contribute,
        upload_bytes_per_s=event.upload_bytes_per_s,
        due_tokens=event.due_tokens,
        spine_ready=event.spine_ready,
        exchange_s=event.late_upload_s or state.exchange_s,
        barred=state.barred.told(event.standings, event.hold),
    )


# --- messages -----------------------------------------------------------------------------------------------------------------


def _message(state: RoundState, event: MessageArrived, now_s: float) -> RoundStep:
    message, sender = event.message, event.sender
    if isinstance(message, Heartbeat):
        return _heartbeat(state, sender, message, now_s)
    most_bytes = MOST_BYTES.get(type(message))
    if most_bytes is not None and len(event.raw) > most_bytes:
        found = f"{type(message).__name__} of {short(sender)}, {len(event.raw)} bytes"
        return RoundStep(state, remark=f"dropped {found}; expected at most {most_bytes}: others have to carry it")
    state = liveness.heard(state, sender, now_s)
    if sender in state.barred.expelled:
        return RoundStep(state, remark=f"dropped a message of {short(sender)}, which its own signatures convict")
    match message:
        case DoubleVote():
            return accused(state, sender, message)
        case FalseSum():
            return refusing.sum_accused(state, sender, message)
        case Leave():
            return liveness.peer_left(state, sender, message, event.raw, now_s)
        case Committed():
            return following.committed(state, sender, message, now_s)
    if message.unit != state.config.unit:
        return RoundStep(state, remark=f"{short(sender)} speaks of unit {message.unit}; this is {state.config.unit}")
    if message.base != state.link.commit:
        return _other_base(state, sender, message)
    match message:
        case Proposal():
            return _proposal(state, sender, message, now_s)
        case Mend():
            return _mend(state, sender, message)
        case ResultReady():
            return _result(state, sender, message, now_s)
        case Ack():
            return attempt.ack(state, sender, message, event.raw)
        case _:
            return _ballot_message(state, sender, message, event.raw, now_s)


_BallotMessage = Settle | PreVoteRequest | PreVote | PromiseRequest | Promise | Refusal


def _ballot_message(state: RoundState, sender: PeerId, message: _BallotMessage, raw: bytes, now_s: float) -> RoundStep:
    ballot = message.promised if isinstance(message, Refusal) else message.ballot
    has_no_vote = isinstance(message, Refusal) and ballot == Ballot(LAST_ATTEMPT, sender)
    if is_absurd(state, ballot) and not has_no_vote:
        return RoundStep(state, remark=f"{short(sender)} named attempt {ballot.attempt}: {_TOO_HIGH}")
    match message:
        case Settle():
            return voting.settled(state, sender, message, now_s)
        case PreVoteRequest():
            return voting.pre_vote_request(state, sender, message, now_s)
        case PreVote():
            return leading.pre_vote(state, sender, message, raw, now_s)
        case PromiseRequest():
            return voting.promise_request(state, sender, message, now_s)
        case Promise():
            return _promise(state, sender, message, raw, now_s)
        case Refusal():
            return leading.refused(state, sender, message, now_s)


_TOO_HIGH: Final = f"too high a number, expected at most {MAX_ATTEMPT_JUMP} above the highest attempt heard of"


def is_absurd(state: RoundState, ballot: Ballot) -> bool:
    """Whether a ballot is too far above every attempt that we heard of on this base."""
    promised = state.open.promised.attempt if state.open.promised is not None else 0
    return ballot.attempt > max(promised, state.open.highest_attempt) + MAX_ATTEMPT_JUMP


def _promise(state: RoundState, sender: PeerId, message: Promise, raw: bytes, now_s: float) -> RoundStep:
    """A promise is evidence about records, so the record that it names is checked before it counts."""
    if message.acked is not None:
        try:
            link = link_after(state.link, message.acked.record)
        except RemoteProtocolError as error:
            return RoundStep(state, remark=f"dropped a promise of {short(sender)}: {error.one_line()}")
        if link.is_lone or not refusing.may_have_been_acked(state, message.acked.record):
            message = dataclasses.replace(message, acked=None)
    return leading.promise(state, sender, message, raw, now_s)


_OnBase = Proposal | Mend | ResultReady | Ack | _BallotMessage


def _other_base(state: RoundState, sender: PeerId, message: _OnBase) -> RoundStep:
    """The sender is behind us (answer with the certificate that ended that base) or elsewhere (ask it); hints only (R4)."""
    if message.base not in state.tree.nodes:
        is_opening = isinstance(message, Proposal | Settle | PromiseRequest | PreVoteRequest)
        reason = f"{short(sender)} speaks of commit {short(message.base)}, which we do not know"
        return following.catch_up(state, sender, reason) if is_opening else RoundStep(state, remark=reason)
    passed = f"{short(sender)} speaks of commit {short(message.base)}; our head is {short(state.link.commit)}"
    if isinstance(message, Proposal | Settle | PromiseRequest | PreVoteRequest):
        return RoundStep(state, (AnswerWithCertificate(sender, message.base, passed),))
    return RoundStep(state, remark=passed)


def _heartbeat(state: RoundState, sender: PeerId, message: Heartbeat, now_s: float) -> RoundStep:
    if message.member.peer != sender or sender == state.config.me.peer:
        remark = f"{short(sender)} sent a heartbeat in the name of {short(message.member.peer)}; expected its own"
        return RoundStep(liveness.heard(state, sender, now_s), remark=remark)
    known = state.peers.get(sender)
    if known is not None and known.member is not None and message.member.session < known.member.session:
        found, newest = message.member.session, known.member.session  # of an earlier process, overtaken on its way
        remark = f"{short(sender)} sent a heartbeat of session {found}; session {newest} was heard already"
        return RoundStep(liveness.heard(state, sender, now_s), remark=remark)
    view = liveness.view_of(state, message, now_s)
    state, head = liveness.with_view(state, view), view.head
    if head is None or head.head == state.link.commit:
        return RoundStep(state)
    if head.head in state.tree.nodes:
        return following.consider(state, sender, now_s)
    return following.passed_by(state, sender, head, now_s)


# --- the member's side of an exchange -----------------------------------------------------------------------------------------


def _proposal(state: RoundState, sender: PeerId, proposal: Proposal, now_s: float) -> RoundStep:
    opened = state.open
    refusal = _why_not_join(state, sender, proposal, now_s)
    if refusal:
        return RoundStep(state, (), refusal)
    if opened.promised is not None and proposal.ballot < opened.promised:
        return RoundStep(state, (voting.refusal(sender, proposal, opened.promised),))
    if opened.proposal is not None and proposal.ballot <= opened.proposal.ballot:
        newest = f"{_named(opened.proposal.ballot)} is under way; expected a higher one"
        return RoundStep(state, remark=f"{short(sender)} proposed {_named(proposal.ballot)}, but {newest}")
    state = doubting_leader(state, sender, now_s)
    opened = replace(
        opened,
        proposal=proposal,
        proposal_at_s=now_s,
        exchange=proposal.ballot,
        results=MappingProxyType({}),
        held=frozenset(),
        revision=0,
        told=AnnouncedTimes(upload_s=state.exchange_s),
        given_s=0.0,
        highest_attempt=max(opened.highest_attempt, proposal.ballot.attempt),
        leaders=_proposed(opened, sender),
    )
    reason = f"round {proposal.index}, attempt {proposal.ballot.attempt}: {len(proposal.members)} members, by {short(sender)}"
    state = replace(state, open=opened)
    orders: tuple[Action, ...] = (BeginExchange(proposal, reason), *ask_left_out(state, proposal, now_s))
    if opened.contribution is not None or opened.is_preparing:
        return RoundStep(state, orders, reason)
    # Reducing does not wait for our own snapshot: a slow trainer must cost nobody but itself.
    state = replace(state, open=replace(opened, is_preparing=True))
    return RoundStep(state, (PrepareContribution(proposal.base, reason), *orders), reason)


def _proposed(opened: OpenRound, leader: PeerId) -> Mapping[PeerId, LeaderAttempts]:
    known = opened.leaders.get(leader, LeaderAttempts())
    return MappingProxyType({**opened.leaders, leader: replace(known, num_proposed=known.num_proposed + 1)})


def _named(ballot: Ballot) -> str:
    return f"attempt {ballot.attempt} of {short(ballot.peer)}"


def _why_not_join(state: RoundState, sender: PeerId, proposal: Proposal, now_s: float) -> str:
    config, ballot = state.config, proposal.ballot
    if ballot.peer != sender:
        return f"{short(sender)} proposed under a ballot of {short(ballot.peer)}; expected its own"
    if ballot.attempt == 0 and sender != base_opener(state):
        return f"{short(sender)} proposed attempt 0, which belongs to the first of the base roster"
    if is_absurd(state, ballot):
        return f"{short(sender)} proposed attempt {ballot.attempt}: {_TOO_HIGH}"
    if proposal.index != state.link.index + 1:
        found = f"{short(sender)} proposed round {proposal.index} on commit {state.link.index}"
        return f"{found}; expected round {state.link.index + 1}"
    if proposal.member(config.me.peer) != config.me:
        return "left out of the proposal: it names another session of ours, or none"
    codecs = both_codecs(proposal.codec, proposal.result_codec)
    expected_codecs = both_codecs(config.codec, config.result_codec)
    if codecs != expected_codecs or proposal.num_chunks != config.num_chunks:
        found = f"{short(sender)} proposed {codecs} over {proposal.num_chunks} chunks"
        return f"{found}, not the run's: {expected_codecs} over {config.num_chunks}"
    most_s = max(config.sums.first_within_s, config.longest_interval_s)
    if proposal.reduce_within_s > most_s:
        return f"{short(sender)} lets slices wait for {proposal.reduce_within_s:.0f} s; expected at most {most_s:.0f}"
    if (proposal.spine == NO_SPINE) != config.is_spine:
        which, expected = ("with", "none") if config.is_spine else ("without", "one")
        return f"{short(sender)} proposed a round of {proposal.unit} {which} a spine; expected {expected}"
    if proposal.lone and (state.open.promised is None or state.open.promised < proposal.ballot):
        return f"{short(sender)} proposed a lone attempt that we did not promise"
    if not proposal.lone:
        problem = consent_problem(state, ballot, proposal.pre_votes, lone=False, now_s=now_s)
        if problem:
            return f"{short(sender)} proposed attempt {ballot.attempt}: {problem}"
    if state.spine is not None and state.spine.standing(proposal.spine) is Standing.OTHER:
        return f"{short(sender)} stands on another lineage of the spine than we, at {short(proposal.spine)}"
    return _why_closed(state)


def _why_closed(state: RoundState) -> str:
    if state.open.committing is not None:
        return f"a commit on this base is already being applied: {short(state.open.committing)}"
    return "we are leaving: no further round is joined" if state.is_leaving else held_because(state)


def _mend(state: RoundState, sender: PeerId, mend: Mend) -> RoundStep:
    """Slices have other reducers now; a slice that keeps its reducer goes on (R12)."""
    opened, proposal = state.open, state.open.proposal
    problem = _why_not_mend(state, sender, mend)
    if proposal is None or problem:
        return RoundStep(state, remark=problem)
    proposal = dataclasses.replace(proposal, slices=mend.slices)
    kept = {part.first_chunk: part for part in mend.slices}
    results = {
        first: header
        for first, header in opened.results.items()
        if first in kept and (kept[first].stop_chunk, kept[first].reducer) == (header.stop_chunk, header.reducer)
    }
    held = opened.held & results.keys()
    opened = replace(opened, proposal=proposal, revision=mend.revision, results=MappingProxyType(results), held=held)
    reason = f"round {proposal.index}: slices were given to other reducers"
    return RoundStep(replace(state, open=opened), (BeginExchange(proposal, reason),), reason)


def _why_not_mend(state: RoundState, sender: PeerId, mend: Mend) -> str:
    opened, proposal, found = state.open, state.open.proposal, f"{short(sender)} mends {_named(mend.ballot)}"
    if proposal is None:
        return f"{found}, but no attempt is under way here"
    if mend.ballot != proposal.ballot or mend.ballot.peer != sender:
        return f"{found}; expected {_named(proposal.ballot)}, by its leader"
    if mend.revision <= opened.revision:
        return f"{found} in revision {mend.revision}; expected one after {opened.revision}"
    if mend.slices[-1].stop_chunk != state.config.num_chunks:
        return f"{found} over {mend.slices[-1].stop_chunk} chunks; expected {state.config.num_chunks}"
    return ""


def _contribution_settled(state: RoundState, event: ContributionReady | ContributionFailed, now_s: float) -> RoundStep:
    if event.base != state.link.commit:
        return RoundStep(state, (), "the head moved while the delta was taken; it is taken again for the next round")
    opened = replace(state.open, is_preparing=False)
    if isinstance(event, ContributionReady):
        contribution = Contribution(event.root, event.tokens)
        opened = replace(opened, contribution=contribution, snapshot_at_s=now_s - event.taken_ago_s)
        reason = f"contributing {event.tokens:,} tokens"
    else:
        reason = "no delta to offer: the trainer is away; reducing only"
    orders = (BeginExchange(opened.proposal, reason),) if opened.proposal is not None else ()
    return RoundStep(replace(state, open=opened), orders, reason)


def _result(state: RoundState, sender: PeerId, message: ResultReady, now_s: float) -> RoundStep:
    """A slice is summed. A result that we report to ourselves is on our disk: it is our own, or came on our stream."""
    opened = state.open
    if opened.proposal is None or message.ballot != opened.proposal.ballot:
        known = (
            "no attempt is under way here" if opened.proposal is None else f"expected {_named(opened.proposal.ballot)}"
        )
        return RoundStep(state, remark=f"dropped a result of {_named(message.ballot)}: {known}")
    try:
        header = refusing.open_result(state.config, opened.proposal, message, state.link)
    except refusing.FalseResultError as error:
        return refusing.false_result(state, opened.proposal, error, now_s)
    except (RemoteProtocolError, VersionError) as error:
        return RoundStep(state, remark=f"dropped a result: {error.one_line()}")
    if not header.included:
        return attempt.nothing_to_sum(state, header, now_s)
    results = MappingProxyType({**opened.results, header.first_chunk: header})
    held = opened.held | {header.first_chunk} if sender == state.config.me.peer else opened.held
    claimed = {entry.peer: entry.tokens for entry in header.included}
    if not claimed.items() <= opened.claimed.items():
        opened = replace(opened, claimed=MappingProxyType({**opened.claimed, **claimed}))
    return attempt.results_changed(replace(state, open=replace(opened, results=results, held=held)), now_s)
