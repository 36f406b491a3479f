"""Commits made to measure: as many tokens, voters and siblings as a test wants, with certificates that verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain import ChainLink, link_after
from protocol.rounds.lineage.lineage import CommitTree, SpineView, tree_of
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.messages.messages import (
    NO_SPINE,
    Ack,
    Ballot,
    Certificate,
    CommitRecord,
    Contributor,
    SliceRecord,
)
from protocol.rounds.messages.wire import encode_message, encode_record
from tests.protocol.rounds.round_table import NUM_CHUNKS, OUTER, SPINE, TARGET_TOKENS, Seat

CAP_TOKENS = 1 << 40


@dataclass(frozen=True)
class Made:
    """A commit: its place in the chain and what proves it."""

    link: ChainLink
    certificate: Certificate


def record_on(
    parent: ChainLink,
    roster: Sequence[PeerId],
    *,
    tokens: int = TARGET_TOKENS,
    lone: bool = False,
    salt: int = 0,
    ballot: Ballot | None = None,
    spine: CommitId = NO_SPINE,
) -> CommitRecord:
    """A record of one slice and one contributor; another `salt` makes another record of the same worth."""
    peer = roster[0]
    root = Root(sha256(b"made" + salt.to_bytes(8, "big")).digest())
    return CommitRecord(
        unit=parent.unit,
        parent=parent.commit,
        index=parent.index + 1,
        ballot=ballot or Ballot(0, first_opener(parent.commit, parent.roster)),
        slices=(SliceRecord(0, NUM_CHUNKS, peer, root, ()),),
        contributors=(Contributor(peer, 1, root, tokens, tokens),),
        codec="fp32",
        weight_cap_tokens=max(CAP_TOKENS, tokens),  # who writes a record may write any cap
        total_tokens=parent.total_tokens + tokens,
        outer=OUTER,
        next_target_tokens=TARGET_TOKENS,
        roster=tuple(sorted(roster)),
        incarnations=(1,) * len(roster),
        lone=lone,
        spine=spine,
    )


def certified(parent: ChainLink, record: CommitRecord, voters: Sequence[Seat]) -> Made:
    """The record with the acks of these seats."""
    raw = encode_record(record)
    link = link_after(parent, raw)
    ack = encode_message(Ack(parent.unit, parent.commit, record.ballot, link.commit))
    return Made(link, Certificate(raw, tuple(seat.sealed(ack) for seat in voters)))


def commit_on(
    parent: ChainLink,
    voters: Sequence[Seat],
    *,
    tokens: int = TARGET_TOKENS,
    lone: bool = False,
    salt: int = 0,
    spine: CommitId = NO_SPINE,
) -> Made:
    """One more commit, whose roster are its voters."""
    record = record_on(parent, [seat.peer for seat in voters], tokens=tokens, lone=lone, salt=salt, spine=spine)
    return certified(parent, record, voters)


def lineage_on(
    parent: ChainLink,
    voters: Sequence[Seat],
    length: int,
    *,
    tokens: int = TARGET_TOKENS,
    lone: bool = False,
    salt: int = 0,
    spine: CommitId = NO_SPINE,
) -> list[Made]:
    """So many commits, one on another; only the first is lone where `lone` is set."""
    made: list[Made] = []
    for place in range(length):
        base = made[-1].link if made else parent
        made.append(commit_on(base, voters, tokens=tokens, lone=lone and not place, salt=salt, spine=spine))
    return made


@dataclass(frozen=True)
class MadeSpine:
    """A run's own lineage that forked after its first commit: `left` and `right` follow `trunk`."""

    root: ChainLink
    trunk: ChainLink
    left: ChainLink
    right: ChainLink
    tree: CommitTree

    def at(self, link: ChainLink) -> SpineView:
        """As a peer follows it that stands there."""
        return SpineView(link.commit, self.tree)


def made_spine(tokens: int = TARGET_TOKENS) -> MadeSpine:
    """Commits of another unit, which nobody at the table holds; each is worth so many tokens."""
    peer = PeerId("holder")
    root = ChainLink(SPINE, CommitId(b"0" * 32), 0, (peer,), 0, TARGET_TOKENS)
    tree = tree_of(root)
    links: list[ChainLink] = []
    for parent, salt in ((0, 0), (1, 1), (1, 2)):
        record = record_on((root, *links)[parent], [peer], tokens=tokens, salt=salt)
        links.append(link_after((root, *links)[parent], encode_record(record)))
        tree = tree.add(links[-1], Certificate(b"", ()))
    return MadeSpine(root, *links, tree)
