"""One verified commit of a unit, as the next round sees it: who votes, how much is trained, when the round is due.

Rules: R3, R19 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.start import StartRecord
from protocol.rounds.messages.wire import commit_id, decode_body, decode_record, genesis_id


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A verified commit of one unit, or its genesis.

    Attributes:
        roster: the voters of the round that follows.
        total_tokens: W, tokens credited on this lineage so far.
        target_tokens: ready tokens at which the round that follows is due.
        record: None for the genesis.
        rules: the rules that the commits after it must at least keep (record_rules.py).
        disks: the incarnations that they vote with, by peer; empty for the genesis of a run that an older host started.
    """

    unit: UnitName
    commit: CommitId
    index: int
    roster: tuple[PeerId, ...]
    total_tokens: int
    target_tokens: int
    record: CommitRecord | None = None
    rules: int = 0
    disks: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    @property
    def parent(self) -> CommitId | None:
        """The commit that this one continues; None for the genesis."""
        return self.record.parent if self.record is not None else None

    def may_vote(self, peer: PeerId, incarnation: int) -> bool:
        """Whether the peer's votes on the round that follows count: not if its disk is newer than its place in the roster (R3 and
        R19). If the start record does not name the disks of founders, any disk of theirs counts.
        """
        return self.disks.get(peer, incarnation) == incarnation

    @property
    def is_lone(self) -> bool:
        """Committed without a quorum of the base roster."""
        return self.record is not None and self.record.lone


def genesis_link(start_record: bytes, unit: UnitName) -> ChainLink:
    """The link before the first commit, from the payload of the host-signed start record.

    Raises:
        RemoteProtocolError: not a start record, or one without this unit.
    """
    start = decode_body(StartRecord, start_record)
    part = next((part for part in start.units if part.unit == unit), None)
    if part is None:
        raise RemoteProtocolError(f"a start record without unit {unit}", "every unit of the manifest")
    roster, genesis = part.roster or start.roster, genesis_id(start_record)
    named = zip(start.roster, start.incarnations, strict=True) if start.incarnations else ()
    disks = MappingProxyType({peer: incarnation for peer, incarnation in named if peer in roster})
    return ChainLink(unit, genesis, 0, roster, 0, start.target_tokens, rules=start.rules, disks=disks)


def link_of(record_bytes: bytes) -> ChainLink:
    """The link that a record makes, for callers that have checked that it continues its parent.

    Raises:
        RemoteProtocolError: not a record.
    """
    record = decode_record(record_bytes)
    return ChainLink(
        record.unit,
        commit_id(record.parent, record_bytes),
        record.index,
        record.roster,
        record.total_tokens,
        record.next_target_tokens,
        record,
        record.rules,
        MappingProxyType(dict(zip(record.roster, record.incarnations, strict=True))),
    )
