"""The chain of commits, which any peer can check: start record, certificates, and the roster that each commit hands on.

Rules: R3, R15, R18, R25, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import open_envelope
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, short
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.lineage.compact import acks_of
from protocol.rounds.lineage.quorum import electorate, is_quorum
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, SignatureCheck, record_problem
from protocol.rounds.lineage.rewind import open_rewind
from protocol.rounds.lineage.rule_numbers import asks_told_votes
from protocol.rounds.messages.bounds import MAX_MEMBERS, MAX_RECORDED_VOTE_BYTES, MAX_VOTE_BYTES
from protocol.rounds.messages.messages import Ack, Certificate, Leave, PreVote, Promise
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.messages.wire import decode_message, decode_record


def link_after(parent: ChainLink, record_bytes: bytes) -> ChainLink:
    """The link that a record makes on `parent`, once it is certified.

    Raises:
        RemoteProtocolError: the record does not continue `parent`, or its sums are wrong.
    """
    record = decode_record(record_bytes)
    if record.parent != parent.commit or record.unit != parent.unit:
        raise RemoteProtocolError("a record on another base", f"the base {parent.commit[:4].hex()} of {parent.unit}")
    if record.index != parent.index + 1:
        raise RemoteProtocolError(f"record index {record.index}", f"{parent.index + 1}")
    credited = sum(c.credited_tokens for c in record.contributors)
    if record.total_tokens != parent.total_tokens + credited:
        raise RemoteProtocolError(f"total of {record.total_tokens} tokens", f"{parent.total_tokens + credited}")
    if any(c.credited_tokens > min(c.tokens, record.weight_cap_tokens) for c in record.contributors):
        raise RemoteProtocolError("a contributor credited with more than it offered", "at most its tokens and the cap")
    return link_of(record_bytes)


M = TypeVar("M", Ack, Leave, PreVote, Promise)


def open_message(raw: bytes, kind: type[M], *, verifier: Verifier, run_id: RunId) -> tuple[PeerId, M]:
    """Read a signed message that others show: its signer, and what was signed. Its expiry is not judged: records and votes are judged
    as of their round (R25).

    Raises:
        RemoteProtocolError: bad signature, another run, or another kind of message.
        VersionError: signed by another version of the protocol.
    """
    envelope = open_envelope(raw, verifier=verifier, domain=ROUND_DOMAIN, run_id=run_id, now_unix_ms=None)
    message = decode_message(envelope.payload)
    if not isinstance(message, kind):
        found = f"a {type(message).__name__} of {short(envelope.sender)}"
        raise RemoteProtocolError(f"{found} among messages of another kind", f"a {kind.__name__}")
    return envelope.sender, message


def open_ack(raw: bytes, *, verifier: Verifier, run_id: RunId) -> tuple[PeerId, Ack]:
    """Read a signed ack. Raises as `open_message`, and RemoteProtocolError for one that is too long."""
    if len(raw) > MAX_VOTE_BYTES:
        raise RemoteProtocolError(f"an ack of {len(raw)} bytes", f"at most {MAX_VOTE_BYTES}")
    return open_message(raw, Ack, verifier=verifier, run_id=run_id)


def is_evidence(ack: Ack, link: ChainLink) -> bool:
    """Whether this ack of a commit would prove a second vote of its voter (double_votes.py). Others do not count: a voter could make
    two certificates on one base with them, and nothing would show it. Acks of older releases count on records as old.
    """
    if link.record is None or not link.record.rules:
        return True
    return ack.version > 0 and (link.is_lone or not ack.lone)


def open_leave(raw: bytes, *, verifier: Verifier, run_id: RunId) -> tuple[PeerId, Leave]:
    """Read a signed goodbye: who left, and its vote.

    Raises:
        RemoteProtocolError: bad signature, another run, or no goodbye of the signer inside.
    """
    if len(raw) > MAX_RECORDED_VOTE_BYTES:
        raise RemoteProtocolError(f"a goodbye of {len(raw)} bytes", f"at most {MAX_RECORDED_VOTE_BYTES}")
    sender, leave = open_message(raw, Leave, verifier=verifier, run_id=run_id)
    if leave.member.peer != sender:
        raise RemoteProtocolError(f"a goodbye of {short(leave.member.peer)} that {short(sender)} signed", "its own")
    return sender, leave


def tells_all_votes(leave: Leave, base: ChainLink) -> bool:
    """Whether a goodbye makes the quorum on its base smaller only as far as its signer's votes allow. A process with a newer disk than
    the roster names does not know what its peer voted: it has to claim the highest ballot. Older releases do not, so an ack that their
    goodbye hides is no lie: such a goodbye could never convict its signer.
    """
    has_none = leave.promised is not None and leave.promised.attempt == LAST_ATTEMPT
    return leave.version > 0 and (has_none or base.may_vote(leave.member.peer, leave.member.incarnation))


def is_vote_on(leave: Leave, base: ChainLink) -> bool:
    """Whether a goodbye tells of votes on this base, and of a record that fits to it if it tells of one."""
    if leave.base != base.commit or not tells_all_votes(leave, base):
        return False
    if leave.acked is None:
        return True
    try:
        link_after(base, leave.acked.record)
    except RemoteProtocolError:
        return False
    return True


def attested_roots(links: Iterable[ChainLink]) -> dict[CommitId, Root]:
    """State roots by commit, as most contributors of later ones of these commits attest them."""
    attested = (link.agreed for link in links)
    return {entry.commit: entry.state_root for entry in attested if entry is not None}


def verify_certificate(certificate: Certificate, parent: ChainLink, *, verifier: Verifier, run_id: RunId) -> ChainLink:
    """The link that a certificate proves on `parent` (R15).

    A lone commit is proven by the acks of its whole roster (R18), any other by a quorum of the parent's roster, without those whose
    goodbye tells all their votes (R3); in older records without all that said goodbye. `record_problem` judges everything else that
    the record says, so that every voter of the lineage was admitted by the run's authority. A rewind is proven by that authority's
    own signature (R28).

    Raises:
        RemoteProtocolError: the record does not continue `parent`, says what nobody signed, or the acks are no quorum of its roster
            in one ballot.
    """
    link = link_after(parent, certificate.record)
    if link.rewind:
        return open_rewind(certificate, parent, verifier=verifier, run_id=run_id)
    if certificate.num_acks > MAX_MEMBERS or len(certificate.leaves) > MAX_MEMBERS:
        raise RemoteProtocolError(f"a certificate of {certificate.num_acks} acks", f"at most {MAX_MEMBERS}")
    ballots: set[Ballot] = set()
    voters: set[PeerId] = set()
    for raw in acks_of(certificate, run_id):
        voter, ack = open_ack(raw, verifier=verifier, run_id=run_id)
        if ack.commit != link.commit or ack.base != parent.commit:
            raise RemoteProtocolError("an ack of another commit in a certificate", "acks of its own record")
        if not is_evidence(ack, link):
            raise RemoteProtocolError(f"an ack of {short(voter)} that could never convict it", "one of this release")
        ballots.add(ack.ballot)
        voters.add(voter)
    if len(ballots) != 1:
        raise RemoteProtocolError(f"acks of {len(ballots)} ballots", "acks of one ballot")
    (ballot,) = ballots
    leaves = dict(open_leave(raw, verifier=verifier, run_id=run_id) for raw in certificate.leaves)
    if any(leave.base != parent.commit or leave.unit != parent.unit for leave in leaves.values()):
        raise RemoteProtocolError("a goodbye on another base in a certificate", "goodbyes on its own base")
    if asks_told_votes(link.rules):
        leaves = {peer: leave for peer, leave in leaves.items() if tells_all_votes(leave, parent)}
    if link.is_lone and set(link.roster) - voters:
        raise RemoteProtocolError(f"{len(voters)} acks of a lone commit", f"all {len(link.roster)} of its roster")
    if not link.is_lone and not is_quorum(run_id, electorate(parent.roster, ballot, leaves), voters):
        raise RemoteProtocolError(f"{len(voters)} acks", f"a quorum of the {len(parent.roster)} of the base roster")
    # last, for it is the most work, and anybody can make up a record that nobody acked
    if link.record is not None:
        problem = record_problem(parent, link.record, SignatureCheck(verifier, run_id), leaves)
        if problem:
            raise RemoteProtocolError(problem, "a record that keeps the rules")
    return link
