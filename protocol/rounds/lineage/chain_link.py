"""One verified commit of a unit, as the next round sees it: who votes, how much is trained, when the round is due.

Old links of a lineage are light: their contributors are read anew from the bytes of the record whenever somebody asks for them.

Rules: R3, R19, R22, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.messages.record import NO_SPINE, Attestation, CommitRecord, LightRecord
from protocol.rounds.messages.start import StartRecord
from protocol.rounds.messages.wire import commit_id, decode_body, decode_record, genesis_id, glance_at_record


@dataclass(frozen=True, slots=True, eq=False)
class ChainLink:
    """A verified commit of one unit, or its genesis. Two are equal if their commits are: a commit's name covers all of it.

    Attributes:
        roster: the voters of the round that follows.
        total_tokens: W, tokens credited on this lineage so far.
        target_tokens: ready tokens at which the round that follows is due.
        content: the record, or what an old link keeps of it; None for the genesis.
        rules: the rules that the commits after it must at least keep (record_rules.py).
        disks: the incarnations that they vote with, by peer; empty for the genesis of a run that an older host started.
    """

    unit: UnitName
    commit: CommitId
    index: int
    roster: tuple[PeerId, ...]
    total_tokens: int
    target_tokens: int
    content: CommitRecord | LightRecord | None = None
    rules: int = 0
    disks: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChainLink) and (self.commit, self.unit) == (other.commit, other.unit)

    def __hash__(self) -> int:
        return hash(self.commit)

    @property
    def record(self) -> CommitRecord | None:
        """The record; None for the genesis. That of an old link is read anew at each look."""
        content = self.content
        return decode_record(content.raw) if isinstance(content, LightRecord) else content

    @property
    def parent(self) -> CommitId | None:
        """The commit that this one continues; None for the genesis."""
        return self.content.parent if self.content is not None else None

    def may_vote(self, peer: PeerId, incarnation: int) -> bool:
        """Whether the peer's votes on the round that follows count: not if its disk is newer than its place in the roster (R3 and
        R19). If the start record does not name the disks of founders, any disk of theirs counts.
        """
        return self.disks.get(peer, incarnation) == incarnation

    @property
    def is_lone(self) -> bool:
        """Committed without a quorum of the base roster."""
        return self.content is not None and self.content.lone

    @property
    def rewind(self) -> int:
        """The number of a rewind of the host (R28); 0 for the commit of a round, and for the genesis."""
        return self.content.rewind if self.content is not None else 0

    @property
    def spine(self) -> CommitId:
        """The spine commit that its record cites; NO_SPINE for a genesis, and in the spine itself."""
        return self.content.spine if self.content is not None else NO_SPINE

    @property
    def credited(self) -> Sequence[int]:
        """The credited tokens of each contributor."""
        return self.content.credited if self.content is not None else ()

    @property
    def cap_tokens(self) -> int:
        """How many tokens of a member count in a round after a fork here (R22): at most the record's weight cap. The genesis names
        none: there a member counts for one round's worth at most.
        """
        return self.content.weight_cap_tokens if self.content is not None else max(1, self.target_tokens)

    @property
    def agreed(self) -> Attestation | None:
        """The state of an earlier commit that most contributors attest."""
        return self.content.agreed if self.content is not None else None

    @property
    def is_light(self) -> bool:
        """Whether its contributors are not in memory."""
        return isinstance(self.content, LightRecord)


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
    roster, disks = _voters(record.roster, record.incarnations)
    commit = commit_id(record.parent, record_bytes)
    target = record.next_target_tokens
    return ChainLink(
        record.unit, commit, record.index, roster, record.total_tokens, target, record, record.rules, disks
    )


def light_link_of(record_bytes: bytes) -> ChainLink:
    """As `link_of`, without its contributors, of a record that was verified at an earlier time. Raises as `link_of`."""
    glance = glance_at_record(record_bytes)
    roster, disks = _voters(glance.roster, glance.incarnations)
    commit = commit_id(glance.light.parent, record_bytes)
    target = glance.next_target_tokens
    return ChainLink(
        glance.unit, commit, glance.index, roster, glance.total_tokens, target, glance.light, glance.rules, disks
    )


def lightened(link: ChainLink, record_bytes: bytes) -> ChainLink:
    """The link without its contributors; `record_bytes` are those of its record."""
    if link.is_light or link.content is None:
        return link
    return replace(link, content=glance_at_record(record_bytes).light)


@functools.lru_cache(maxsize=64)
def _voters(
    roster: tuple[PeerId, ...], incarnations: tuple[int, ...]
) -> tuple[tuple[PeerId, ...], Mapping[PeerId, int]]:
    """The roster and the disks of its voters. Links with the same voters share them in memory."""
    return roster, MappingProxyType(dict(zip(roster, incarnations, strict=True)))
