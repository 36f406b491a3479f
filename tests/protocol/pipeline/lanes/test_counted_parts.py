from __future__ import annotations

from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.pipeline.lanes.counted_parts import counted_tokens
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.messages import Ballot, CommitRecord, Contributor, Omission, OuterStep, SliceRecord

UNIT, BASE, ROOT = UnitName("stage-1"), CommitId(b"b" * 32), Root(bytes(32))
A, B = PeerId("alice"), PeerId("bob")


def _link(
    slices: tuple[SliceRecord, ...], *of: tuple[PeerId, tuple[LanePart, ...]], cap_tokens: int = 1000
) -> ChainLink:
    contributors = tuple(
        Contributor(peer, 1, ROOT, tokens := sum(part.tokens for part in parts), min(tokens, cap_tokens), parts)
        for peer, parts in of
    )
    record = CommitRecord(
        UNIT, BASE, 1, Ballot(0, A), slices, contributors, "fp32", cap_tokens, 1, OuterStep("mean", 1.0, 0.0), 1, (A,), (1,)
    )  # fmt: skip
    return ChainLink(UNIT, CommitId(b"c" * 32), 1, (A,), 1, 1, record)


WHOLE = (SliceRecord(0, 9, A, ROOT, ()),)
THIRDS = (SliceRecord(0, 3, A, ROOT, (Omission(A, "late"),)), SliceRecord(3, 9, A, ROOT, (Omission(B, "late"),)))


def test_a_part_counts_whole_whoever_brought_it_and_whatever_the_weight_cap_is() -> None:
    link = _link(WHOLE, (A, (LanePart(7, 3, 100), LanePart(8, 3, 50))), (B, (LanePart(9, 3, 100),)), cap_tokens=60)
    assert [counted_tokens([link], lane, 3) for lane in (7, 8, 9)] == [100, 50, 100]


def test_other_lanes_other_rounds_and_the_genesis_count_nothing_of_it() -> None:
    link = _link(WHOLE, (A, (LanePart(7, 3, 100),)))
    genesis = ChainLink(UNIT, BASE, 0, (A,), 0, 1)
    assert counted_tokens([genesis, link], 7, 2) == counted_tokens([genesis, link], 8, 3) == 0
    assert counted_tokens([genesis, link], 7, 3) == 100


def test_where_slices_took_it_of_different_peers_each_counts_by_its_slices() -> None:
    both = _link(THIRDS, (A, (LanePart(7, 3, 90),)), (B, (LanePart(7, 3, 90),)))
    assert counted_tokens([both], 7, 3) == 90
    one = _link(THIRDS, (A, (LanePart(7, 3, 90),)), (B, (LanePart(8, 3, 90),)))
    assert [counted_tokens([one], lane, 3) for lane in (7, 8)] == [60, 30]
