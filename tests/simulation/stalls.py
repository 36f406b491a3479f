"""Lies that would stop all rounds: fences, long deadlines, goodbyes with high promises, votes and records with other bytes than they
need, and a follower that is always behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from protocol.ids import PeerId
from protocol.pb import round_pb2
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.messages import (
    Ack,
    AckedRecord,
    Certificate,
    Committed,
    Heartbeat,
    Leave,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    RoundMessage,
    Settle,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.wire import commit_id, encode_message, encode_record
from protocol.rounds.orders import Action, Send, SendHeartbeat
from protocol.rounds.state import RoundState
from protocol.rounds.voting import LEAVE_VERSION
from tests.simulation.lies import record_by, resigned

if TYPE_CHECKING:
    from tests.simulation.liars import Liar
    from tests.simulation.swarm import World

FENCES: Final = "asks, is promised, and proposes nothing"
LONG: Final = "slices wait for a day"
GOODBYE: Final = "goodbye with a high promise"
PADDED: Final = "votes with more bytes"
BROKEN: Final = "records without chunks"
BEHIND: Final = "always behind, on a slow line"
STALLS: Final = (FENCES, LONG, GOODBYE, PADDED, BROKEN, BEHIND)

NUM_STALLS: Final = (1, 2)
"""Least and most of these kinds of one liar. About half of the liars tell any."""

PADDINGS: Final = (64, 2048, 200_000)
"""Bytes of a field that nobody knows: fewer than a vote may have, more, and more than any certificate could carry of all."""

MOST_BROKEN: Final = 6
"""Commits without chunks that one liar tells unasked."""

VOTES: Final = (Ack, Leave, PreVote, Promise)


# --- in place of what it would say ----------------------------------------------------------------------------------------------


def instead_of(liar: Liar, state: RoundState, order: Action) -> Action:
    """Its order, changed by one of these lies or not."""
    if isinstance(order, SendHeartbeat):
        return replace(order, heartbeat=_beat(liar, state, order.heartbeat))
    if not isinstance(order, Send):
        return order
    message: RoundMessage = order.message
    if isinstance(message, Proposal) and message.ballot.peer == state.config.me.peer and liar.does(LONG):
        message = replace(message, reduce_within_s=86_400.0)
    if isinstance(message, Settle) and message.ballot.peer == state.config.me.peer and liar.does(BROKEN):
        message = replace(message, record=_broken(liar, message.record))
    if isinstance(message, Promise) and liar.does(BROKEN):
        message = replace(message, acked=AckedRecord(Ballot(0, liar.gang.member.peer), _made_up(liar, state)))
    if isinstance(message, VOTES) and liar.does(PADDED):
        message = replace(message)  # this object alone is padded, not an equal one of somebody else
        liar.node.world.padded[id(message)] = (message, liar.stall_chooser.choice(PADDINGS))
    return order if message is order.message else replace(order, message=message)


def _beat(liar: Liar, state: RoundState, beat: Heartbeat) -> Heartbeat:
    """It stands on the commit before ours for ever, and takes as long to upload as can be said."""
    link, parent = state.link, state.link.parent
    if parent is None or not liar.does(BEHIND):
        return beat
    heads = (
        replace(head, head=parent, index=link.index - 1, can_contribute=True)
        if head.unit == state.config.unit and head.head == link.commit
        else head
        for head in beat.heads
    )
    return replace(beat, heads=tuple(heads), exchange_ms=(1 << 32) - 1)


def _made_up(liar: Liar, state: RoundState) -> bytes:
    record = record_by(liar.gang, state.link, state.config, (liar.gang.member,), lone=False)
    return _broken(liar, encode_record(resigned(record, liar.gang)))


def _broken(liar: Liar, raw: bytes) -> bytes:
    """A record with a slice of no chunks, or with slices that run back."""
    record = round_pb2.CommitRecord()
    record.ParseFromString(raw)
    first = record.slices[0]
    if liar.stall_chooser.random() < 0.5:
        first.first_chunk = first.stop_chunk = 0
    else:
        stop, first.stop_chunk = first.stop_chunk, (1 << 32) - 1
        back = record.slices.add()
        back.CopyFrom(first)
        back.first_chunk, back.stop_chunk = (1 << 32) - 1, stop
    return record.SerializeToString(deterministic=True)


# --- unasked ------------------------------------------------------------------------------------------------------------------------


def unasked(liar: Liar, state: RoundState) -> list[RoundMessage]:
    """Its own words at a tick."""
    opened, unit, link = state.open, state.config.unit, state.link
    me = liar.gang.member.peer
    said: list[RoundMessage] = []
    if liar.does(FENCES):
        floor = max(opened.highest_attempt, opened.promised.attempt if opened.promised is not None else 0)
        liar.fence = Ballot(min(floor + 1, LAST_ATTEMPT), me)
        liar.consents.clear()
        said.append(PreVoteRequest(unit, link.commit, liar.fence, 1e9))
    if liar.does(GOODBYE):
        high = Ballot(liar.stall_chooser.choice((900, LAST_ATTEMPT)), me)
        said.append(Leave(state.config.me, unit, link.commit, high, version=LEAVE_VERSION))
    if liar.num_broken < MOST_BROKEN and liar.does(BROKEN):
        liar.num_broken += 1
        said.append(Committed(unit, _certified(liar, link, _made_up(liar, state))))
    return said


def _certified(liar: Liar, parent: ChainLink, raw: bytes) -> Certificate:
    commit = commit_id(parent.commit, raw)
    ack = encode_message(Ack(parent.unit, parent.commit, Ballot(1, liar.gang.member.peer), commit, version=1))
    return Certificate(raw, tuple(pen.sealed(ack) for _, pen in sorted(liar.gang.pens.items())))


def answers(liar: Liar, state: RoundState, sender: PeerId, message: RoundMessage, raw: bytes) -> list[Action]:
    """Once a quorum agreed to its fence, all are asked for their promises, with these consents as its proof."""
    if not isinstance(message, PreVote) or message.objection or message.ballot != liar.fence:
        return []
    liar.consents[sender] = raw
    if 2 * (len(liar.consents) + 1) <= len(state.link.roster):
        return []
    shown = tuple(liar.consents.values())
    request = PromiseRequest(state.config.unit, state.link.commit, message.ballot, shown)
    others = tuple(node.peer for node in liar.node.world.live_nodes() if node.peer != liar.gang.member.peer)
    liar.fence = None
    return [Send(others, request, "a lie")]


# --- on the wire --------------------------------------------------------------------------------------------------------------------


def padding(world: World, real: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """As `real` encodes a message, with an unknown field where a liar pads it."""

    def encode(message: RoundMessage) -> bytes:
        _, size = world.padded.get(id(message), (message, 0))
        return real(message) + (_unknown_field(size) if size else b"")

    return encode


def _unknown_field(size: int) -> bytes:
    length = bytearray()
    rest = size
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return b"\xfa\x7f" + bytes([*length, rest]) + bytes(size)
