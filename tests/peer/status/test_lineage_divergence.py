from __future__ import annotations

from peer.status.lineage_divergence import APART_AFTER_S, LineageDivergence, after_report
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain import ChainLink


def _commit(number: int) -> CommitId:
    return CommitId(bytes([number]) * 32)


LINKS = tuple(
    ChainLink(UnitName("whole"), _commit(index), index, (PeerId("me"),), 100 * index, 100) for index in range(5)
)


def test_who_has_the_hosts_head_or_is_ahead_of_it_or_has_not_begun_is_not_apart() -> None:
    for links, head, index in [(LINKS, _commit(4), 4), (LINKS, _commit(2), 2), ((), _commit(77), 9)]:
        before = LineageDivergence(since_s=1.0, host_index=9)
        assert after_report(before, links, head, index, 500.0).sentence(1000.0) == ""


def test_who_lacks_the_hosts_head_for_long_is_told_since_when_and_what_follows() -> None:
    apart = LineageDivergence()
    for now_s in (100.0, 102.0, 100.0 + APART_AFTER_S - 1):
        apart = after_report(apart, LINKS, _commit(90), 81, now_s)
        assert apart.sentence(now_s) == ""
    told = apart.sentence(100.0 + 2 * APART_AFTER_S)
    assert "for 2 min" in told
    assert "round 81" in told
    assert "round 4 of its own" in told
    assert "potluck doctor" in told


def test_another_commit_of_a_round_that_is_here_is_apart_too() -> None:
    apart = after_report(LineageDivergence(), LINKS, _commit(90), 3, 100.0)
    assert "round 3 that is not here" in apart.sentence(100.0 + APART_AFTER_S)


def test_once_the_hosts_head_is_here_the_time_begins_anew() -> None:
    apart = after_report(LineageDivergence(), LINKS, _commit(90), 81, 100.0)
    apart = after_report(apart, LINKS, _commit(4), 4, 101.0)
    apart = after_report(apart, LINKS, _commit(90), 82, 150.0)
    assert apart.sentence(100.0 + APART_AFTER_S) == ""
