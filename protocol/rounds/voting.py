"""A member's votes: acks of settled records, promises to those who take over. Each is durable before it is told."""

from __future__ import annotations

from dataclasses import replace

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, short
from protocol.rounds.chain import ChainLink, link_after
from protocol.rounds.messages import Ack, AckedRecord, Promise, PromiseRequest, Refusal, Settle
from protocol.rounds.state import (
    AckLogged,
    BytesHeld,
    GatherBytes,
    LogAck,
    LogPromise,
    PromiseLogged,
    RoundState,
    Send,
    Step,
)


def settled(state: RoundState, sender: PeerId, settle: Settle) -> Step:
    """A settled record: gather its bytes before anything is acked (rule 14)."""
    opened = state.open
    if settle.ballot.peer != sender or opened.committing is not None:
        return Step(state)
    if opened.promised is not None and settle.ballot < opened.promised:
        return Step(state, (Send((sender,), Refusal(settle.unit, settle.base, opened.promised)),))
    try:
        link = link_after(state.link, settle.record)
    except RemoteProtocolError as error:
        return Step(state, (), f"refused a settled record: {error.one_line()}")
    if opened.acked is not None and opened.acked.ballot == settle.ballot:
        if opened.acked.record != settle.record:  # one record for a ballot, for ever (rule 13)
            return Step(state, (), f"{short(sender)} settled two records in one ballot; the first stands")
        return Step(state, (Send((sender,), Ack(settle.unit, settle.base, settle.ballot, link.commit)),))
    if opened.gathering is not None and settle.ballot <= opened.gathering.ballot:
        return Step(state)
    problem = _why_not_ack(state, link)
    if problem:
        return Step(state, (), problem)
    state = replace(state, open=replace(opened, gathering=settle))
    return Step(state, (GatherBytes(settle),))


def _why_not_ack(state: RoundState, link: ChainLink) -> str:
    record = link.record
    if record is None:
        return "a settled record without content"
    if record.outer != state.config.outer or record.codec != state.config.codec:
        return f"refused a record with outer step {record.outer} and codec {record.codec}: not the run's"
    if record.slices[-1].stop_chunk != state.config.num_chunks:
        return f"refused a record over {record.slices[-1].stop_chunk} chunks: the unit has {state.config.num_chunks}"
    if record.lone or len(record.contributors) < 1:
        return "refused a lone record: there is a quorum to ask"
    return ""


def bytes_held(state: RoundState, event: BytesHeld) -> Step:
    """All bytes are on disk: the ack may be written."""
    opened, settle = state.open, event.settle
    if settle.base != state.link.commit or opened.gathering != settle:
        return Step(state)
    opened = replace(opened, gathering=None)
    if opened.promised is not None and settle.ballot < opened.promised:
        state = replace(state, open=opened)
        return Step(state, (Send((settle.ballot.peer,), Refusal(settle.unit, settle.base, opened.promised)),))
    link = link_after(state.link, settle.record)
    # The log is written in the order of these orders, so a promise asked for from here on is written after this ack and names it.
    opened = replace(opened, acked=AckedRecord(settle.ballot, settle.record), promised=settle.ballot)
    return Step(replace(state, open=opened), (LogAck(settle.base, settle.ballot, settle.record, link.commit),))


def ack_logged(state: RoundState, event: AckLogged) -> Step:
    """The ack is on disk: it may be told."""
    if event.base != state.link.commit:
        return Step(state)
    ack = Ack(state.config.unit, event.base, event.ballot, event.commit)
    return Step(state, (Send((event.ballot.peer,), ack),), f"acked round {state.link.index + 1}")


def promise_request(state: RoundState, sender: PeerId, request: PromiseRequest) -> Step:
    """Somebody takes over: promise, durably, or say what is promised already (rule 16)."""
    opened = state.open
    if request.ballot.peer != sender or request.ballot.attempt < 1:
        return Step(state, (), f"{short(sender)} asked for a promise that is not its own to ask")
    if opened.promised is not None and request.ballot < opened.promised:
        return Step(state, (Send((sender,), Refusal(request.unit, request.base, opened.promised)),))
    opened = replace(
        opened,
        promised=request.ballot,
        highest_attempt=max(opened.highest_attempt, request.ballot.attempt),
        gathering=None,
    )
    return Step(replace(state, open=opened), (LogPromise(request.base, request.ballot),))


def promise_logged(state: RoundState, event: PromiseLogged) -> Step:
    """The promise is on disk: it may be told, with what we acked."""
    if event.base != state.link.commit or state.open.promised != event.ballot:
        return Step(state)
    if state.open.leading is not None and state.open.leading.ballot < event.ballot:
        state = replace(state, open=replace(state.open, leading=None))
    promise = Promise(state.config.unit, event.base, event.ballot, state.open.acked)
    return Step(state, (Send((event.ballot.peer,), promise),), f"promised attempt {event.ballot.attempt}")
