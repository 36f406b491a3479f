from __future__ import annotations

from collections import Counter

from peer.status.duties_core import NUM_BRINGERS, evaluator_of, is_bringer
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain import ChainLink

PEERS = tuple(PeerId(f"peer {number}") for number in range(8))


def _link(index: int, roster: tuple[PeerId, ...] = PEERS) -> ChainLink:
    return ChainLink(UnitName("whole"), CommitId(bytes([index]) * 32), index, roster, 100 * index, 100)


def _bringers(link: ChainLink) -> set[PeerId]:
    return {peer for peer in (*PEERS, PeerId("stranger")) if is_bringer(link, peer)}


def test_two_members_bring_a_commit_and_one_of_them_measures_it() -> None:
    for index in range(50):
        bringers = _bringers(_link(index))
        assert len(bringers) == NUM_BRINGERS
        assert evaluator_of(_link(index)) in bringers


def test_who_is_alone_brings_its_own() -> None:
    assert _bringers(_link(3, PEERS[2:3])) == {PEERS[2]}


def test_everybody_has_its_turn() -> None:
    turns = Counter(peer for index in range(200) for peer in _bringers(_link(index)))
    assert set(turns) == set(PEERS)
    assert max(turns.values()) < 4 * min(turns.values())
