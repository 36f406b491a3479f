from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from peer.status.duties_core import NUM_BRINGERS, EvaluationTurns, is_bringer
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink

RUN = RunId(b"r" * 32)
PEERS = tuple(PeerId(f"peer {number}") for number in range(8))


def _link(index: int, roster: tuple[PeerId, ...] = PEERS) -> ChainLink:
    return ChainLink(UnitName("whole"), CommitId(bytes([index]) * 32), index, roster, 100 * index, 100)


def _bringers(link: ChainLink) -> set[PeerId]:
    return {peer for peer in (*PEERS, PeerId("stranger")) if is_bringer(link, peer)}


def _measuring(link: ChainLink, here: Collection[PeerId]) -> list[PeerId]:
    return [me for me in here if EvaluationTurns(RUN, me, here.__contains__).is_commit_ours(link)]


def test_two_members_bring_a_commit_and_one_measures_it() -> None:
    for index in range(50):
        assert len(_bringers(_link(index))) == NUM_BRINGERS
        assert len(_measuring(_link(index), PEERS)) == 1


def test_one_of_those_that_are_here_measures_and_nobody_outside_the_roster_does() -> None:
    for index in range(50):
        (evaluator,) = _measuring(_link(index), PEERS)
        (stand_in,) = _measuring(_link(index), set(PEERS) - {evaluator})
        assert stand_in != evaluator
        assert _measuring(_link(index, PEERS[:2]), {*PEERS[2:]}) == []


def test_with_three_seats_three_of_those_that_are_here_measure() -> None:
    for index in range(50):
        here = {*PEERS[:5]}
        measuring = [me for me in here if EvaluationTurns(RUN, me, here.__contains__, 3).is_commit_ours(_link(index))]
        assert len(measuring) == 3
        assert set(_measuring(_link(index), here)) <= set(measuring)


def test_another_record_on_the_same_base_is_measured_by_the_same_peer() -> None:
    for index in range(50):
        other = replace(_link(index), commit=CommitId(b"o" * 32))
        assert _measuring(_link(index), PEERS) == _measuring(other, PEERS)


def test_who_is_alone_brings_its_own() -> None:
    assert _bringers(_link(3, PEERS[2:3])) == {PEERS[2]}


def test_everybody_has_its_turn() -> None:
    turns = Counter(peer for index in range(200) for peer in _bringers(_link(index)))
    assert set(turns) == set(PEERS)
    assert max(turns.values()) < 4 * min(turns.values())
