"""Statements that a host signed itself, and that peers give back to it when it was restored from an old copy of its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from coordinator.history.history_rows import put_begins
from coordinator.ledger.ledger import CommitRow
from protocol.errors import RemoteProtocolError
from protocol.host.calls import START_DOMAIN
from protocol.identity.envelope import open_envelope
from protocol.rounds.lineage.milestones import SignedMilestone, open_milestone
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import (
    decode_body,
    decode_certificate,
    decode_record,
    encode_certificate,
    encode_record,
)

if TYPE_CHECKING:
    from coordinator.history.followed_log import FollowedLog
    from coordinator.history.run_history import RunHistory
    from protocol.host.reports import PeerReport
    from protocol.identity.identity import Signer

_log = structlog.get_logger()


def check_own_start(sealed: bytes, check: SignatureCheck, host: Signer, units: Sequence[StartUnit]) -> None:
    """Check that a start record is one that this host signed for a run of these units.

    Raises:
        RemoteProtocolError: it is not ours, or not of this run.
    """
    envelope = open_envelope(
        sealed, verifier=check.verifier, domain=START_DOMAIN, run_id=check.run_id, now_unix_ms=None
    )
    if envelope.sender != host.peer_id:
        raise RemoteProtocolError("a start record that the host did not sign", "the host's own")
    if without_rosters(decode_body(StartRecord, envelope.payload).units) != without_rosters(tuple(units)):
        raise RemoteProtocolError("a start record of other units", "the run's own")


def without_rosters(units: Sequence[StartUnit]) -> tuple[StartUnit, ...]:
    """The fields of the units that every peer can compute."""
    return tuple(replace(unit, roster=()) for unit in units)


async def begun_again(chain: FollowedLog, report: PeerReport, history: RunHistory, now_unix_s: int) -> CommitRow | None:
    """The commit at which our log begins again, if a peer brings a milestone that we signed, and has no commits between our head and
    that. None if our log can go on as it is.

    Raises:
        RemoteProtocolError, VersionError: a milestone in the report is not ours.
        StorageError: the ledger refused.
    """
    place = history.place
    check, own_key = SignatureCheck(place.verifier, place.run_id), place.signer.public_key
    found = [
        open_milestone(sealed, check=check, host_public_key=own_key, genesis=chain.genesis.commit)
        for sealed in report.milestones
    ]
    of_spine = [each for each in found if each.link.unit == place.spine]
    for each in of_spine:
        await history.take_back(each.link.unit, each.link.index, each.sealed)
    first = _first_index(report)
    ahead = [each for each in of_spine if each.link.index > chain.head.index and not chain.knows(each.link.commit)]
    ahead = [each for each in ahead if each.link.index >= first - 1]
    if not ahead or first <= chain.head.index + 1:
        return None
    begins = min(ahead, key=lambda each: each.link.index)
    row = _row_of(begins, now_unix_s)
    await history.ledger.run(lambda ledger: put_begins(ledger, row))
    await history.restore()
    reason = f"no peer has commits between round {chain.head.index} and our milestone of round {row.index}"
    _log.warning("begun_at_milestone", index=row.index, reason=reason)
    return row


def _first_index(report: PeerReport) -> int:
    """The round of the first certificate in a report; 0 without any."""
    return decode_record(decode_certificate(report.certificates[0]).record).index if report.certificates else 0


def _row_of(milestone: SignedMilestone, now_unix_s: int) -> CommitRow:
    """The commit of a milestone as a row of the ledger. Nobody has its acks any more."""
    link = milestone.link
    record = link.record
    if record is None:
        raise RemoteProtocolError("a milestone without a record", "the host's own")
    certificate = encode_certificate(Certificate(encode_record(record)))
    return CommitRow(link.commit, link.unit, record.parent, link.index, certificate, now_unix_s)
