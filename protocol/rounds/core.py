"""One round after another of one unit at one peer, as a pure machine: `step(state, event, now) -> Step`.

The member's side is here, with its votes in voting.py and signs of life in liveness.py. The opener's side is leading.py. Together
they are single-decree Paxos on each base commit: the first opener of the base roster owns attempt 0, whose ballot is the
lowest there is and needs no promises; anybody else collects promises first and finishes what may already be decided. A commit
exists when more than half of the base roster has, on disk, all bytes that its record names and an ack in one ballot.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from protocol.envelope import open_envelope
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, Root, short
from protocol.rounds import leading, liveness, voting
from protocol.rounds.chain import ROUND_DOMAIN, ChainLink, verify_certificate
from protocol.rounds.messages import (
    Ack,
    Committed,
    Heartbeat,
    Leave,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    ResultHeader,
    ResultReady,
    Settle,
)
from protocol.rounds.state import (
    AckLogged,
    Action,
    AnswerWithCertificate,
    Applied,
    BeginExchange,
    BytesHeld,
    CatchUp,
    Commit,
    CommitStalled,
    Contribution,
    ContributionFailed,
    ContributionReady,
    EndExchange,
    Event,
    MessageArrived,
    OpenRound,
    PeerAnswered,
    PeerLost,
    PeersListed,
    PrepareContribution,
    Progressed,
    PromiseLogged,
    RoundConfig,
    RoundState,
    Send,
    Step,
    Ticked,
)
from protocol.wire import decode_body, decode_record

NUM_FORWARDS: Final = 2
"""Successors to whom a member forwards a certificate (rule 15); the leader sends it to everybody it knows."""


def start(
    config: RoundConfig,
    link: ChainLink,
    now_s: float,
    *,
    state_root: Root,
    open_round: OpenRound | None = None,
) -> RoundState:
    """The machine at a verified head; `open_round` is what the log knows of the round on it (rule 19)."""
    return RoundState(
        config=config,
        link=link,
        peers=MappingProxyType({}),
        open=open_round or OpenRound(),
        committed_at_s=now_s,
        state_commit=link.commit,
        state_root=state_root,
        ticked_at_s=now_s,
    )


def step(state: RoundState, event: Event, now_s: float) -> Step:
    """Take one event; returns the new state, the orders, and why."""
    match event:
        case Ticked():
            return liveness.ticked(state, event, now_s)
        case MessageArrived():
            return _message(liveness.heard(state, event.sender, now_s), event, now_s)
        case PeerAnswered():
            return Step(liveness.heard(state, event.peer, now_s))
        case PeerLost():
            return liveness.peer_lost(state, event.peer, now_s)
        case PeersListed():
            return liveness.peers_listed(state, event, now_s)
        case Progressed():
            return Step(
                replace(
                    state,
                    tokens_ready=event.tokens_ready,
                    can_contribute=event.can_contribute,
                    upload_bytes_per_s=event.upload_bytes_per_s,
                )
            )
        case ContributionReady():
            return _contribution_ready(state, event)
        case ContributionFailed():
            return _contribution_failed(state, event)
        case BytesHeld():
            return voting.bytes_held(state, event)
        case AckLogged():
            return voting.ack_logged(state, event)
        case PromiseLogged():
            return voting.promise_logged(state, event)
        case Applied():
            return _applied(state, event, now_s)
        case CommitStalled():
            if state.open.committing != event.commit:
                return Step(state)
            return Step(replace(state, open=replace(state.open, committing=None)), (), f"commit waits: {event.why}")


# --- messages -----------------------------------------------------------------------------------------------------------------


def _message(state: RoundState, event: MessageArrived, now_s: float) -> Step:
    message = event.message
    match message:
        case Heartbeat():
            return _heartbeat(state, event.sender, message)
        case Leave():
            view = state.peers.get(event.sender)
            gone = liveness.with_view(state, replace(view, left=True)) if view is not None else state
            return Step(gone, (), f"{short(event.sender)} left")
        case Committed():
            return _committed(state, event.sender, message)
    if message.base != state.link.commit:
        return _other_base(state, event.sender, message)
    match message:
        case Proposal():
            return _proposal(state, event.sender, message, now_s)
        case ResultReady():
            return _result(state, message, now_s)
        case Settle():
            return voting.settled(state, event.sender, message)
        case PromiseRequest():
            return voting.promise_request(state, event.sender, message)
        case Ack():
            return leading.ack(state, event.sender, message, event.raw)
        case Promise():
            return leading.promise(state, event.sender, message, now_s)
        case Refusal():
            return leading.refused(state, message, now_s)


_OnBase = Proposal | ResultReady | Settle | PromiseRequest | Ack | Promise | Refusal


def _other_base(state: RoundState, sender: PeerId, message: _OnBase) -> Step:
    """The sender is behind us (answer with what ended that base) or ahead of us (ask it); hints only (rule 4)."""
    if isinstance(message, Proposal) and message.index > state.link.index + 1:
        return Step(
            state, (CatchUp(sender),), f"{short(sender)} proposes round {message.index}, ours is {state.link.index + 1}"
        )
    if isinstance(message, Proposal | Settle | PromiseRequest):
        return Step(state, (AnswerWithCertificate(sender, message.base),))
    return Step(state)


def _heartbeat(state: RoundState, sender: PeerId, message: Heartbeat) -> Step:
    head = next((h for h in message.heads if h.unit == state.config.unit), None)
    if message.member.peer != sender:
        return Step(state, (), f"{short(sender)} sent a heartbeat in the name of {short(message.member.peer)}")
    view = replace(
        state.peers[sender],
        member=message.member,
        head=head,
        is_inbound_reachable=message.is_inbound_reachable,
        upload_bytes_per_s=message.upload_bytes_per_s,
        left=False,
    )
    state = liveness.with_view(state, view)
    if head is not None and head.index > state.link.index and state.open.committing is None:
        return Step(
            state, (CatchUp(sender),), f"{short(sender)} is at commit {head.index}, we are at {state.link.index}"
        )
    return Step(state)


def _proposal(state: RoundState, sender: PeerId, proposal: Proposal, now_s: float) -> Step:
    opened = state.open
    refusal = _why_not_join(state, sender, proposal)
    if refusal:
        return Step(state, (), refusal)
    if opened.promised is not None and proposal.ballot < opened.promised:
        return Step(state, (Send((sender,), Refusal(proposal.unit, proposal.base, opened.promised)),))
    if opened.proposal is not None and proposal.ballot <= opened.proposal.ballot:
        return Step(state)
    opened = replace(
        opened,
        proposal=proposal,
        proposal_at_s=now_s,
        exchange=None,
        results=MappingProxyType({}),
        highest_attempt=max(opened.highest_attempt, proposal.ballot.attempt),
    )
    reason = f"round {proposal.index}, attempt {proposal.ballot.attempt}: {len(proposal.members)} members, by {short(sender)}"
    state = replace(state, open=opened)
    if opened.contribution is not None:
        return _begin_exchange(state, reason)
    if opened.is_preparing:
        return Step(state, (), reason)
    return Step(replace(state, open=replace(opened, is_preparing=True)), (PrepareContribution(proposal.base),), reason)


def _why_not_join(state: RoundState, sender: PeerId, proposal: Proposal) -> str:
    config = state.config
    if proposal.ballot.peer != sender:
        return f"{short(sender)} proposed under a ballot of {short(proposal.ballot.peer)}"
    if proposal.member(config.me.peer) != config.me:
        return "left out of the proposal: it names another session of ours, or none"
    if proposal.codec != config.codec or proposal.num_chunks != config.num_chunks:
        return f"{short(sender)} proposed codec {proposal.codec} over {proposal.num_chunks} chunks, not the run's"
    if state.open.committing is not None:
        return "a commit on this base is already being applied"
    return ""


def _begin_exchange(state: RoundState, reason: str) -> Step:
    opened = state.open
    if opened.proposal is None:
        return Step(state, (), reason)
    state = replace(state, open=replace(opened, exchange=opened.proposal.ballot))
    return Step(state, (BeginExchange(opened.proposal),), reason)


def _contribution_ready(state: RoundState, event: ContributionReady) -> Step:
    if event.base != state.link.commit:
        return Step(state, (), "the head moved while the delta was taken; it is taken again for the next round")
    contribution = Contribution(event.root, event.tokens, is_at_hand=True)
    state = replace(state, open=replace(state.open, contribution=contribution, is_preparing=False))
    return _begin_exchange(state, f"contributing {event.tokens} tokens")


def _contribution_failed(state: RoundState, event: ContributionFailed) -> Step:
    if event.base != state.link.commit:
        return Step(state)
    state = replace(state, open=replace(state.open, is_preparing=False))
    return _begin_exchange(state, "no delta to offer: the trainer is away; reducing only")


def _result(state: RoundState, message: ResultReady, now_s: float) -> Step:
    opened = state.open
    if opened.proposal is None or message.ballot != opened.proposal.ballot:
        return Step(state)
    try:
        header = _open_result(state.config, message)
    except RemoteProtocolError as error:
        return Step(state, (), f"dropped a result: {error.one_line()}")
    expected = next((s for s in opened.proposal.slices if s.first_chunk == header.first_chunk), None)
    if expected is None or expected.reducer != header.reducer or expected.stop_chunk != header.stop_chunk:
        return Step(state, (), f"dropped a result of {short(header.reducer)}: not its slice")
    if header.ballot != message.ballot or header.base != message.base:
        return Step(state, (), f"dropped a result of {short(header.reducer)}: of another attempt")
    results = MappingProxyType({**opened.results, header.first_chunk: header})
    return leading.results_changed(replace(state, open=replace(opened, results=results)), now_s)


def _open_result(config: RoundConfig, message: ResultReady) -> ResultHeader:
    envelope = open_envelope(
        message.header, verifier=config.verifier, domain=ROUND_DOMAIN, run_id=config.run_id, now_unix_ms=None
    )
    header = decode_body(ResultHeader, envelope.payload)
    if header.reducer != envelope.sender:
        raise RemoteProtocolError(
            f"a result in the name of {short(header.reducer)}", f"its signature, not {short(envelope.sender)}'s"
        )
    return header


# --- commit -------------------------------------------------------------------------------------------------------------------


def _committed(state: RoundState, sender: PeerId, message: Committed) -> Step:
    if state.open.committing is not None:
        return Step(state)
    try:
        link = verify_certificate(
            message.certificate, state.link, verifier=state.config.verifier, run_id=state.config.run_id
        )
    except RemoteProtocolError as error:
        return _not_ours_to_apply(state, sender, message, error)
    state = replace(state, open=replace(state.open, committing=link.commit, leading=None))
    holders = tuple(dict.fromkeys((sender, *(link.roster))))
    return Step(state, (Commit(link, message.certificate, holders),))


def _not_ours_to_apply(state: RoundState, sender: PeerId, message: Committed, error: RemoteProtocolError) -> Step:
    """An old certificate is nothing, a later one means that we are behind; a bad one on our own base is worth a word."""
    try:
        record = decode_record(message.certificate.record)
    except RemoteProtocolError:
        return Step(state, (), f"dropped a certificate of {short(sender)}: {error.one_line()}")
    if record.index > state.link.index + 1:
        return Step(
            state, (CatchUp(sender),), f"{short(sender)} holds commit {record.index}, we are at {state.link.index}"
        )
    if record.parent == state.link.commit:
        return Step(state, (), f"dropped a certificate of {short(sender)}: {error.one_line()}")
    return Step(state)


def _applied(state: RoundState, event: Applied, now_s: float) -> Step:
    old = state.link
    if event.link.index <= old.index:
        return Step(state)
    forward = _forward_targets(state)
    base = old.commit
    state = replace(
        state,
        link=event.link,
        open=OpenRound(),
        committed_at_s=now_s,
        state_commit=event.link.commit,
        state_root=event.state_root,
    )
    record = event.link.record
    counted = len(record.contributors) if record is not None else 0
    reason = f"round {event.link.index} committed: {counted} counted, {event.link.total_tokens} tokens in all"
    actions: list[Action] = [EndExchange(base, "committed")]
    if forward:
        actions.append(Send(forward, Committed(state.config.unit, event.certificate)))
    return Step(state, tuple(actions), reason)


def _forward_targets(state: RoundState) -> tuple[PeerId, ...]:
    """Its leader tells everybody it knows; others tell two successors in the order of ids (rule 15)."""
    others = [p for p in sorted(state.peers) if not liveness.is_gone(state, p)]
    if not others:
        return ()
    proposal = state.open.proposal
    me = state.config.me.peer
    if proposal is not None and proposal.ballot.peer == me:
        return tuple(others)
    after = [p for p in others if p > me] + [p for p in others if p < me]
    return tuple(after[:NUM_FORWARDS])
