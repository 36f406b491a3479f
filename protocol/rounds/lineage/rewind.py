"""Rewinds: commits of the host that take rounds back (R28). Pure.

The record of a rewind has no slices and no contributors. All else in it is that of its parent, the last good commit, so the host can
choose nothing but that commit. Its ballot is the number of the rewind and the run's authority, and its certificate holds one envelope
of that authority instead of acks:

    domain REWIND_DOMAIN, sequence: the number of the rewind
    payload: commit id 32 | commit that is left 32 | unix time u64, s

Nobody votes on a rewind. The rounds after it have a base of their own, so a voter that acked a commit beside it has acked nothing
there. At a fork the lineage with the newest rewind comes first (R22).

For ROUNDS_SET_BACK rounds after a rewind only the voters of its good commit are counted: work of peers that came later, or that have
no vote, was in the rounds that are taken back, and nothing tells whose it was.

Rules: R18, R22, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import Signer, Verifier
from protocol.ids import HASH_BYTES, CommitId, PeerId, RunId, short
from protocol.received import require
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.record import MAX_REWINDS, Ballot, CommitRecord
from protocol.rounds.messages.wire import commit_id, encode_record

REWIND_DOMAIN: Final = "potluck rewind"

ROUNDS_SET_BACK: Final = 8
"""Rounds after a rewind in which nobody is counted but the voters of its good commit."""

_PAYLOAD: Final = struct.Struct(f">{HASH_BYTES}s{HASH_BYTES}sQ")


@dataclass(frozen=True, slots=True)
class Rewind:
    """The words of a rewind. `number` counts the run's rewinds from 1; `left` is the head that is left, `unix_s` the date."""

    number: int
    left: CommitId
    unix_s: int


def seal_rewind(authority: Signer, run_id: RunId, good: ChainLink, rewind: Rewind) -> Certificate:
    """The certificate that takes the run back to a good commit.

    Args:
        authority: the key of the run's certificate authority.
        good: the last good commit; the run goes on from its state.

    Raises:
        LocalProtocolError: `good` is the start of the run, or the number is not 1 to MAX_REWINDS.
    """
    if not 1 <= rewind.number <= MAX_REWINDS:
        raise LocalProtocolError(f"rewind number {rewind.number}", f"1 to {MAX_REWINDS}: the run needs its owner")
    record = _record_of(good, rewind.number, authority.peer_id)
    payload = _PAYLOAD.pack(commit_id(good.commit, record), rewind.left, rewind.unix_s)
    return Certificate(record, (seal(authority, REWIND_DOMAIN, run_id, rewind.number, NEVER_MS, payload),))


def open_rewind(certificate: Certificate, good: ChainLink, *, verifier: Verifier, run_id: RunId) -> ChainLink:
    """The link that the certificate of a rewind proves on the good commit.

    Raises:
        RemoteProtocolError: another key than the authority's signed it, or it says more than its parent does.
        VersionError: signed by a version that is not read any more.
    """
    link, rewind = link_of(certificate.record), opened_rewind(certificate, verifier=verifier, run_id=run_id)
    if good.record is None or certificate.record != _record_of(good, rewind.number, verifier.authority):
        raise RemoteProtocolError(f"a rewind to {short(good.commit)} that changes more", "the numbers of that commit")
    return link


def opened_rewind(certificate: Certificate, *, verifier: Verifier, run_id: RunId) -> Rewind:
    """The words that the authority signed with this certificate, whether they fit to its parent or not. Raises as `open_rewind`."""
    if len(certificate.acks) != 1 or certificate.votes or certificate.leaves:
        raise RemoteProtocolError(f"a rewind with {certificate.num_acks} signatures", "one of the run's authority")
    envelope = open_envelope(
        certificate.acks[0], verifier=verifier, domain=REWIND_DOMAIN, run_id=run_id, now_unix_ms=None
    )
    if envelope.sender != verifier.authority:
        raise RemoteProtocolError(
            f"a rewind that {short(envelope.sender)} signed", "one that the run's authority signed", "it is ignored"
        )
    require(len(envelope.payload) == _PAYLOAD.size, f"a rewind of {len(envelope.payload)} bytes", f"{_PAYLOAD.size}")
    commit, left, unix_s = _PAYLOAD.unpack(envelope.payload)
    link = link_of(certificate.record)
    if commit != link.commit or envelope.sequence != link.rewind:
        raise RemoteProtocolError("the signature of another rewind", "its own")
    return Rewind(envelope.sequence, CommitId(left), unix_s)


def _record_of(good: ChainLink, number: int, authority: PeerId) -> bytes:
    record = good.record
    if record is None:
        raise LocalProtocolError("a rewind to the start of the run", "a commit after it")
    rewound = replace(
        record,
        parent=good.commit,
        index=good.index + 1,
        ballot=Ballot(number, authority),
        slices=(),
        contributors=(),
        attested=None,
        attestations=(),
        lone=False,
    )
    return encode_record(rewound)


def newest_rewind(behind: Iterable[ChainLink]) -> ChainLink | None:
    """The rewind that sets peers back in the next round, None if none does. `behind`: the head and its ancestors, newest first."""
    return next((link for link in islice(behind, ROUNDS_SET_BACK) if link.rewind), None)


def counted_only(behind: Iterable[ChainLink]) -> frozenset[PeerId] | None:
    """The peers that may be counted in the next round; None for everybody, also once peers went on alone without any voter of the
    rewind (R18). `behind` is as for `newest_rewind`.
    """
    newest = list(islice(behind, ROUNDS_SET_BACK))
    rewind = newest_rewind(newest)
    if rewind is None:
        return None
    allowed, later = frozenset(rewind.roster), newest[: newest.index(rewind)]
    return None if any(link.is_lone and allowed.isdisjoint(link.roster) for link in later) else allowed


def set_back_problem(behind: Iterable[ChainLink], record: CommitRecord | None) -> str:
    """Why a new record may not be acked: it counts a peer that a rewind sets back. Empty if it counts none. Only voters ask:
    what was committed stands. Peers that are set back may go on alone, without any voter of the rewind (R18): else a run whose voters
    are gone would stand still. `behind`: the record's base and its ancestors, newest first.
    """
    allowed = counted_only(behind)
    if record is not None and allowed and record.lone and allowed.isdisjoint(e.peer for e in record.contributors):
        return ""
    found = [entry.peer for entry in record.contributors if entry.peer not in allowed] if record and allowed else []
    return f"it counts {short(found[0])}, which did not vote on the commit that the host went back to" if found else ""
