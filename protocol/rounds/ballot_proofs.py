"""A leader shows the consent of a quorum to its take-over, and a quorum's promises, before others follow its ballot.

Attempt 0 needs neither: its owner follows from the base. A lone attempt has no quorum to show; each peer judges its own patience.

Rules: R6, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from protocol.errors import RemoteProtocolError, VersionError
from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.rounds.bad_results import may_have_been_acked
from protocol.rounds.lineage.chain import link_after, open_leave, open_message, tells_all_votes
from protocol.rounds.lineage.quorum import electorate, is_quorum
from protocol.rounds.messages.bounds import MAX_RECORDED_VOTE_BYTES, MAX_VOTE_BYTES
from protocol.rounds.messages.messages import Ack, AckedRecord, Leave, PreVote, Promise, Settle
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.queries import has_vote, is_base_quorum, may_be_lone
from protocol.rounds.state import RoundState, SignedLeave

MOST_BYTES: Final[Mapping[type, int]] = {
    Ack: MAX_VOTE_BYTES,
    PreVote: MAX_VOTE_BYTES,
    Promise: MAX_RECORDED_VOTE_BYTES,
    Leave: MAX_RECORDED_VOTE_BYTES,
}
"""Votes that certificates, proposals and settles show to others, in their envelopes."""

M = TypeVar("M", PreVote, Promise)

Acked: TypeAlias = Sequence[tuple[PeerId, AckedRecord]]
"""Peers, each with the record that it says it acked."""


def consent_problem(state: RoundState, ballot: Ballot, pre_votes: Iterable[bytes], *, lone: bool, now_s: float) -> str:
    """Why this ballot may not take over; empty when a quorum finds, as its leader does, that the opener is gone or overdue (R6)."""
    if ballot.attempt == 0:
        return ""
    if lone:
        return "" if may_be_lone(state, now_s) else "a quorum of the base roster was in reach lately"
    try:
        agreed = {sender for sender, vote in _opened(state, PreVote, ballot, pre_votes) if not vote.objection}
    except (RemoteProtocolError, VersionError) as error:
        return f"a pre-vote that does not count: {error.one_line()}"
    if has_vote(state, ballot.peer):
        agreed.add(ballot.peer)
    if not is_base_quorum(state, ballot, agreed):
        return f"{len(agreed)} peers agreed to attempt {ballot.attempt}; expected a quorum of the base roster"
    return ""


def may_be_decided(state: RoundState, record: bytes, acked: Acked, promised: Collection[PeerId]) -> bool:
    """Whether a quorum may have acked this record: all that say so, and all that did not promise. If even these are too few, it was
    not decided, and one peer's word that it acked a record holds up nobody.

    Args:
        acked: what those that promised, or left, say that they acked.
    """
    roster = state.link.roster
    said = {peer for peer, entry in acked if entry.record == record}
    silent = {peer for peer in roster if peer not in promised}
    return is_quorum(state.config.run_id, roster, said | silent)


def highest_first(acked: Acked) -> Acked:
    """Acked records by their ballots, the highest first. A leader may have settled two in one ballot: then the order of their bytes
    decides, so that all who see the same promises finish the same one.
    """
    return sorted(acked, key=lambda item: (item[1].ballot, item[1].record), reverse=True)


def promise_problem(state: RoundState, settle: Settle) -> str:
    """Why a record may not be settled under its ballot; empty when a quorum's promises allow it (R16). If any of them, or a goodbye,
    names an acked record that may be decided, then the one of the highest ballot is the only one that may be settled, else only a
    new one, or one that is named. Goodbyes count only where the promises are no quorum without them. A record that breaks a rule was
    never acked.
    """
    ballot, config = settle.ballot, state.config
    made_in = decode_record(settle.record).ballot
    if ballot.attempt == 0:
        return "" if made_in == ballot else f"attempt 0 settles a record of attempt {made_in.attempt}"
    try:
        promises = dict(_opened(state, Promise, ballot, settle.promises))
        told = {peer: signed.leave for peer, signed in leaves_in(state, settle).items()}
        leaves = {**told, **state.open.departures}
        acked = [(peer, promise.acked) for peer, promise in promises.items()]
        if not is_quorum(config.run_id, state.link.roster, promises):
            acked += [(peer, leave.acked) for peer, leave in leaves.items()]
        named = [(peer, entry) for peer, entry in acked if entry is not None]
        found = [(peer, entry) for peer, entry in named if may_have_been_acked(state, entry.record)]
        valid = [(peer, entry) for peer, entry in found if not link_after(state.link, entry.record).is_lone]
    except (RemoteProtocolError, VersionError) as error:
        return f"a promise that does not count: {error.one_line()}"
    if not is_quorum(config.run_id, electorate(state.link.roster, ballot, leaves), promises):
        return f"{len(promises)} promises to attempt {ballot.attempt}; expected those of a quorum of the base roster"
    return _choice_problem(state, settle, valid, promises)


def _choice_problem(state: RoundState, settle: Settle, acked: Acked, promised: Collection[PeerId]) -> str:
    attempt = settle.ballot.attempt
    for _, entry in highest_first(acked):
        if entry.record == settle.record:
            return ""
        if may_be_decided(state, entry.record, acked, promised):
            return f"attempt {attempt} settles another record than the one acked in attempt {entry.ballot.attempt}"
    made_in = decode_record(settle.record).ballot
    if made_in != settle.ballot:
        return f"attempt {attempt} settles a record of attempt {made_in.attempt} that nobody acked"
    return ""


def leaves_in(state: RoundState, settle: Settle) -> dict[PeerId, SignedLeave]:
    """The goodbyes of voters on our base that a settled record relies on, by leaver. Raises RemoteProtocolError and VersionError."""
    config, found = state.config, dict[PeerId, SignedLeave]()
    for raw in settle.leaves:
        peer, leave = open_leave(raw, verifier=config.verifier, run_id=config.run_id)
        is_known = peer in state.link.roster and tells_all_votes(leave, state.link)
        if leave.base == state.link.commit and leave.unit == config.unit and is_known:
            found[peer] = SignedLeave(leave, raw)
    return found


def with_leaves(state: RoundState, settle: Settle) -> RoundState:
    """Keep the goodbyes that a settled record relies on: whoever finishes the record has to show them. The first one of a peer on a
    base stands. Raises as `leaves_in`.
    """
    for peer, signed in leaves_in(state, settle).items():
        if peer not in state.open.leaves:
            leaves = MappingProxyType({**state.open.leaves, peer: signed})
            state = replace(state, open=replace(state.open, leaves=leaves))
    return state


def _opened(state: RoundState, kind: type[M], ballot: Ballot, raw: Iterable[bytes]) -> list[tuple[PeerId, M]]:
    """The messages of this kind for this ballot on our base, each with its signer. Raises RemoteProtocolError and VersionError."""
    config, found = state.config, list[tuple[PeerId, M]]()
    for each in raw:
        sender, message = open_message(each, kind, verifier=config.verifier, run_id=config.run_id)
        if (message.unit, message.base, message.ballot) != (config.unit, state.link.commit, ballot):
            raise RemoteProtocolError(
                f"a {kind.__name__} for another ballot or base", f"attempt {ballot.attempt} on ours"
            )
        found.append((sender, message))
    return found
