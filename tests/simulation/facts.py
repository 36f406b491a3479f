"""The contents that a commit may have, told once more from what the world knows itself: who signed what, who was admitted, and
which disks there are.

Written apart from protocol/rounds/lineage/record_rules.py, so that a check that is missing there is found by honest peers that took a
commit into their tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.claim import Input, SliceSum, encode_claim, encode_sum
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import CommitRecord, Contributor, OmissionCode, SliceRecord
from protocol.rounds.messages.requests import ContributionHeader

MOST_CAP = 16
"""A cap is at most so many times the median of the signed tokens of three or more.

It is at least that median: heartbeats may be late.
"""

MOST_OF_FEW = 4
"""Of fewer it is at most so many times the lowest of them, or the tokens at which the round was due."""

MOST_CREDITED = 4
"""A commit credits at most so many times what its round was due at, or what the one before credited."""

RULES = 3
"""Of all records of these worlds, in which everybody fits into a round."""


@dataclass
class Facts:
    """All that anybody in a world has signed, and the peers that were admitted."""

    signed: set[tuple[PeerId, bytes]] = field(default_factory=set)
    admitted: set[PeerId] = field(default_factory=set)

    def problem(self, parent: ChainLink, record: CommitRecord, left: Collection[PeerId]) -> str:
        """Why no honest peer may follow this commit; empty if it says what is so."""
        if record.rules != RULES:
            return f"it keeps rules {record.rules}, not those of its run"
        return (
            self._signatures(record)
            or _numbers(parent, record)
            or _roster(parent, record, left)
            or _attested(record)
            or _words(record)
        )

    def _signatures(self, record: CommitRecord) -> str:
        for entry in record.contributors:
            if (entry.peer, encode_claim(_claim(record, entry))) not in self.signed:
                return f"{entry.peer} never claimed {entry.tokens} tokens with this root"
            if entry.peer not in self.admitted:
                return f"{entry.peer} was never admitted"
        for part in record.slices:
            if not _sum(record, part).inputs:
                return f"slice {part.first_chunk} counts nobody"
            if (part.reducer, encode_sum(_sum(record, part))) not in self.signed:
                return f"{part.reducer} never summed slice {part.first_chunk} so"
            if part.reducer not in self.admitted:
                return f"{part.reducer} summed slice {part.first_chunk} and was never admitted"
        return ""


def _claim(record: CommitRecord, entry: Contributor) -> ContributionHeader:
    pair = record.attestations[entry.attests - 1]
    return ContributionHeader(
        record.unit,
        record.parent,
        Member(entry.peer, entry.incarnation, entry.session),
        entry.tokens,
        record.codec,
        entry.root,
        pair.commit,
        pair.state_root,
        entry.lanes,
    )


def _sum(record: CommitRecord, part: SliceRecord) -> SliceSum:
    gone = {entry.peer for entry in part.omitted}
    inputs = [
        Input(entry.peer, entry.root, min(entry.tokens, record.weight_cap_tokens)) for entry in record.contributors
    ]
    return SliceSum(
        record.unit,
        record.parent,
        part.first_chunk,
        part.stop_chunk,
        part.reducer,
        part.result_hash,
        part.lost_ppm,
        tuple(each for each in inputs if each.peer not in gone),
        part.disagreeing,
    )


def _chunks_counted(record: CommitRecord, peer: PeerId) -> int:
    counting = (part for part in record.slices if all(entry.peer != peer for entry in part.omitted))
    num_summed = sum(part.stop_chunk - part.first_chunk for part in counting)
    return num_summed - sum(each.num_chunks for part in record.slices for each in part.disagreeing if each.peer == peer)


def _numbers(parent: ChainLink, record: CommitRecord) -> str:
    tokens = sorted(entry.tokens for entry in record.contributors)
    is_few = len(tokens) < 3
    fair_cap = MOST_OF_FEW * max(1, tokens[0], parent.target_tokens) if is_few else MOST_CAP * max(1, _median(tokens))
    if record.weight_cap_tokens > fair_cap:
        return f"its cap is {record.weight_cap_tokens} tokens, the claims are {tokens}"
    if record.weight_cap_tokens < _least_fair_cap(parent, record, tokens):
        return f"its cap is {record.weight_cap_tokens} tokens, too few for claims of {tokens}"
    earlier = parent.record.contributors if parent.record is not None else ()
    before = sum(entry.credited_tokens for entry in earlier)
    if len(earlier) < 3:
        before = min(before, MOST_CREDITED * parent.target_tokens)
    most, num_chunks = MOST_CREDITED * max(1, parent.target_tokens, before), record.slices[-1].stop_chunk
    worth: dict[PeerId, int] = {}
    for entry in record.contributors:
        num_counted = _chunks_counted(record, entry.peer)
        if all(entry.peer in {each.peer for each in part.omitted} for part in record.slices):
            return f"{entry.peer} contributed to no slice"
        worth[entry.peer] = min(entry.tokens, record.weight_cap_tokens) * num_counted // num_chunks
    total = sum(worth.values())
    for entry in record.contributors:
        fair = worth[entry.peer] * most // total if total > most else worth[entry.peer]
        if entry.credited_tokens != fair:
            return f"it credits {entry.peer} with {entry.credited_tokens} tokens for {fair}"
    return ""


def _least_fair_cap(parent: ChainLink, record: CommitRecord, tokens: list[int]) -> int:
    """A peer that was left out may have been proposed with a single token. A lone commit has no voters beside its own signers."""
    if record.lone:
        return 0
    claimed = {entry.peer for entry in record.contributors}
    left_out = {entry.peer for part in record.slices for entry in part.omitted} - claimed
    told = [1] * len(left_out) + tokens
    return max(1, told[0], parent.target_tokens) if len(told) < 3 else _median(told)


def _median(ordered: list[int]) -> int:
    return ordered[len(ordered) // 2]


def _roster(parent: ChainLink, record: CommitRecord, left: Collection[PeerId]) -> str:
    voters, before = set(record.roster), set(parent.roster)
    contributors = {entry.peer: entry.incarnation for entry in record.contributors}
    if voters - before - contributors.keys():
        return f"{sorted(voters - before - contributors.keys())} vote next and took no part"
    if contributors.keys() - voters - set(left):
        return f"{sorted(contributors.keys() - voters)} took part and do not vote next"
    if not record.lone and len(voters) < len(before - set(left)) - len(before) // 3:
        return f"of {len(before)} voters {len(voters)} are left"
    for peer, disk in zip(record.roster, record.incarnations, strict=True):
        known = contributors.get(peer, parent.disks.get(peer, disk))
        if disk != known:
            return f"{peer} votes with disk {disk}, not {known}"
    return ""


def _attested(record: CommitRecord) -> str:
    if {entry.attests for entry in record.contributors} != set(range(1, 1 + len(record.attestations))):
        return "it has states that nobody attests, or contributors that attest none"
    pairs = Counter(record.attestations[entry.attests - 1] for entry in record.contributors)
    if record.attested is None or pairs[record.attested] < max(pairs.values()):
        return "it attests a state of few"
    return ""


def _words(record: CommitRecord) -> str:
    omissions = [entry for part in record.slices for entry in part.omitted]
    if any(entry.reason or entry.code == OmissionCode.UNKNOWN for entry in omissions):
        return "it says in words why somebody is left out"
    if any(len({entry.peer for entry in part.omitted}) < len(part.omitted) for part in record.slices):
        return "it leaves somebody out twice"
    return ""
