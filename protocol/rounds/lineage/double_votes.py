"""Two acks that prove that a voter lied: on one base, for different commits, the later one silent about the earlier.

An honest voter may ack a second record on a base, in a higher ballot, if the first was not decided (R16). Its second ack then names
the first. So one of two things is a proof: two acks of one ballot, or a later ack that does not name the earlier. Acks of lone
records stand apart, as their promises do (R18).

Two claims of one process on one base prove a lie as well: it makes one contribution for all attempts (R8). So does a goodbye that
says nothing of an ack of its signer on its base: without the leaver fewer voters are a quorum, and nothing else would tell that it
voted (R3).

Rules: R3, R8, R16, R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocol.errors import RemoteProtocolError, VersionError
from protocol.identity.envelope import enveloped, open_envelope
from protocol.ids import CommitId, PeerId, short
from protocol.rounds.lineage.chain import open_ack, open_leave
from protocol.rounds.lineage.compact import acks_of
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, SignatureCheck, claim_in
from protocol.rounds.messages.claim import decode_claim, encode_claim
from protocol.rounds.messages.messages import Certificate, Proposal, ResultHeader
from protocol.rounds.messages.record import LAST_ATTEMPT, Included
from protocol.rounds.messages.requests import ContributionHeader


@dataclass(frozen=True, slots=True)
class Conviction:
    """The voter that its own signatures convict, the base, and the two records that it acked there: one if it said goodbye beside it,
    none if it signed two claims.
    """

    voter: PeerId
    base: CommitId
    commits: tuple[CommitId, ...]

    @property
    def words(self) -> str:
        """The proven lie, as the end of a sentence about the voter."""
        base = short(self.base)
        if not self.commits:
            return f"signed two claims of one process on base {base}"
        if len(self.commits) == 1:
            return f"acked {short(self.commits[0])} on base {base}, and its goodbye hides that"
        both = " and ".join(short(commit) for commit in self.commits)
        return f"acked {both} on base {base}, and the later ack hides the earlier"


def double_voter(one: bytes, other: bytes, check: SignatureCheck) -> PeerId | None:
    """The peer that these two signed messages convict; None if they prove nothing."""
    found = conviction_of(one, other, check)
    return found.voter if found is not None else None


def conviction_of(one: bytes, other: bytes, check: SignatureCheck) -> Conviction | None:
    """The proof that these two signed acks, or claims, or an ack and a goodbye, are; None if they prove nothing."""
    try:
        acks = [open_ack(raw, verifier=check.verifier, run_id=check.run_id) for raw in (one, other)]
    except (RemoteProtocolError, VersionError):
        hidden = _hidden_ack(one, other, check) or _hidden_ack(other, one, check)
        return hidden or _two_claims_of_one(one, other, check)
    (voter, low), (other_voter, high) = sorted(acks, key=lambda item: item[1].ballot)
    if voter != other_voter or (low.unit, low.base) != (high.unit, high.base) or low.lone or high.lone:
        return None
    if low.commit == high.commit or low.version == 0 or high.version == 0:
        return None
    is_named = high.before is not None and high.before >= low.ballot and low.ballot != high.ballot
    if is_named and (high.before != low.ballot or high.before_commit == low.commit):
        return None
    return Conviction(voter, low.base, (low.commit, high.commit))


def double_voters(
    one: Certificate, other: Certificate, check: SignatureCheck
) -> tuple[tuple[PeerId, bytes, bytes], ...]:
    """The voters that two certificates on one base convict, each with two acks, or an ack and a goodbye, that prove it."""
    ours, theirs = (_by_voter(acks_of(certificate, check.run_id), check) for certificate in (one, other))
    our_leaves, their_leaves = (_by_leaver(certificate.leaves, check) for certificate in (one, other))
    signed = (ours, theirs), (ours, their_leaves), (our_leaves, theirs)
    pairs = [(mine[peer], other[peer]) for mine, other in signed for peer in sorted(mine.keys() & other.keys())]
    found = {voter: pair for pair in reversed(pairs) if (voter := double_voter(*pair, check)) is not None}
    return tuple((voter, *found[voter]) for voter in sorted(found))


def _by_voter(acks: Iterable[bytes], check: SignatureCheck) -> dict[PeerId, bytes]:
    """The acks by their voter; those that cannot be read are left out."""
    found: dict[PeerId, bytes] = {}
    for raw in acks:
        try:
            found[open_ack(raw, verifier=check.verifier, run_id=check.run_id)[0]] = raw
        except (RemoteProtocolError, VersionError):
            continue
    return found


def _by_leaver(leaves: Iterable[bytes], check: SignatureCheck) -> dict[PeerId, bytes]:
    """The goodbyes by their signer; those that cannot be read are left out."""
    found: dict[PeerId, bytes] = {}
    for raw in leaves:
        try:
            found[open_leave(raw, verifier=check.verifier, run_id=check.run_id)[0]] = raw
        except (RemoteProtocolError, VersionError):
            continue
    return found


def _hidden_ack(signed_ack: bytes, goodbye: bytes, check: SignatureCheck) -> Conviction | None:
    """An ack in a higher ballot than that which a goodbye on the same base tells of. A leaver tells its highest ack, and acks
    nothing there from then on. Only a peer that does not know its votes tells of none, and claims the highest ballot instead. One of
    an older release does not claim it: its goodbye proves nothing, and counts in no new record (chain.py).
    """
    try:
        voter, ack = open_ack(signed_ack, verifier=check.verifier, run_id=check.run_id)
        leaver, leave = open_leave(goodbye, verifier=check.verifier, run_id=check.run_id)
    except (RemoteProtocolError, VersionError):
        return None
    if voter != leaver or (ack.unit, ack.base) != (leave.unit, leave.base) or ack.lone or ack.version == 0:
        return None
    knows_no_votes = leave.promised is not None and leave.promised.attempt == LAST_ATTEMPT
    if leave.version == 0 or knows_no_votes or (leave.acked is not None and leave.acked.ballot >= ack.ballot):
        return None
    return Conviction(voter, ack.base, (ack.commit,))


def _two_claims_of_one(one: bytes, other: bytes, check: SignatureCheck) -> Conviction | None:
    try:
        claims = [_open_claim(raw, check) for raw in (one, other)]
    except (RemoteProtocolError, VersionError):
        return None
    first, second = claims
    is_one_process = (first.unit, first.base, first.member) == (second.unit, second.base, second.member)
    return Conviction(first.member.peer, first.base, ()) if is_one_process and first != second else None


def _open_claim(raw: bytes, check: SignatureCheck) -> ContributionHeader:
    envelope = open_envelope(raw, verifier=check.verifier, domain=ROUND_DOMAIN, run_id=check.run_id, now_unix_ms=None)
    claim = decode_claim(envelope.payload)
    if claim.member.peer != envelope.sender:
        raise RemoteProtocolError(
            f"a claim of {short(claim.member.peer)}", f"one of its signer {short(envelope.sender)}"
        )
    return claim


def two_claims(
    results: Sequence[ResultHeader], proposal: Proposal, check: SignatureCheck
) -> tuple[bytes, bytes] | None:
    """Two claims of one member, as it signed them, of which two reducers have one each: no record can be made of their results."""
    known: dict[PeerId, Included] = {}
    for entry in (entry for header in results for entry in header.included):
        first = known.setdefault(entry.peer, entry)
        if claim_in(first, proposal) != claim_in(entry, proposal):
            return _signed_claim(first, proposal, check), _signed_claim(entry, proposal, check)
    return None


def _signed_claim(entry: Included, proposal: Proposal, check: SignatureCheck) -> bytes:
    """The envelope of which a result carries the seal."""
    key = check.verifier.public_key_of(entry.peer)
    payload = encode_claim(claim_in(entry, proposal))
    return enveloped(entry.seal, domain=ROUND_DOMAIN, run_id=check.run_id, public_key=key, payload=payload)
