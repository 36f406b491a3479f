"""Which expert is fetched next, and what is said of one that nobody holds any more."""

from __future__ import annotations

import pytest

from coordinator.stood_on import PATIENCE_S
from coordinator.unit_keeper_core import (
    UnitLook,
    frozen_sentence,
    is_lost,
    next_visit,
    stands_apart,
    still_apart,
    unit_looks,
)
from protocol.coordination import NO_COMMIT, NO_ROOT
from protocol.ids import CommitId, PeerId, UnitName
from protocol.reports import PeerReport, UnitStanding

A, B, C = (PeerId(name) for name in "abc")
FIRST, SECOND = UnitName("expert-0"), UnitName("expert-1")


def test_the_holders_of_each_expert_are_told_of_whoever_is_furthest_first() -> None:
    def report(unit: UnitName, index: int) -> PeerReport:
        standing = UnitStanding(unit, CommitId(b"c" * 32), NO_ROOT, index)
        return PeerReport("training", "", UnitName("trunk"), beside=(standing,))

    live = {B: report(FIRST, 2), A: report(FIRST, 2), C: report(FIRST, 5)}
    newest = UnitLook(FIRST, 5, (C, A, B), CommitId(b"c" * 32), frozenset({CommitId(b"c" * 32)}))
    assert unit_looks((FIRST, SECOND), live) == (newest, UnitLook(SECOND, 0, ()))
    assert unit_looks((), live) == ()


def test_what_several_hold_may_wait_and_what_one_holds_may_not() -> None:
    several, single = UnitLook(FIRST, 8, (A, B)), UnitLook(SECOND, 5, (C,))
    assert next_visit([several, single], {FIRST: 5, SECOND: 5}, every_rounds=4) is None
    assert next_visit([several, single], {FIRST: 4, SECOND: 5}, every_rounds=4) == several
    assert next_visit([several, single], {FIRST: 5, SECOND: 4}, every_rounds=4) == single
    assert next_visit([several, single], {SECOND: 2}, every_rounds=4) == several, "it is further behind"


def test_holders_that_stand_on_another_side_are_visited_though_they_are_no_further() -> None:
    look, ahead = UnitLook(FIRST, 5, (A, B)), UnitLook(SECOND, 6, (A, B))
    assert next_visit([look], {FIRST: 7}, every_rounds=4, elsewhere=[FIRST]) == look
    assert next_visit([look], {FIRST: 7}, every_rounds=4, elsewhere=[SECOND]) is None
    assert next_visit([ahead], {SECOND: 5}, every_rounds=4, elsewhere=[SECOND]) is None, "a newer round may wait"


@pytest.mark.parametrize("holders", [(), (A,), (A, B)])
def test_what_nobody_holds_or_what_stands_behind_is_not_fetched(holders: tuple[PeerId, ...]) -> None:
    assert next_visit([UnitLook(FIRST, 9 if not holders else 3, holders)], {FIRST: 3}, every_rounds=1) is None


def test_of_a_frozen_expert_it_is_said_which_rounds_are_lost() -> None:
    begin = "nobody who is there holds it: it waits for a holder"
    assert frozen_sentence(0, 0) == begin
    assert frozen_sentence(7, 7) == frozen_sentence(7, 8) == f"{begin}, who gets all of its 7 rounds from here"
    lost = "lost unless one who held it comes back"
    assert frozen_sentence(7, 6) == f"{begin}, who gets round 6 from here; round 7 is {lost}"
    assert frozen_sentence(7, 5) == f"{begin}, who gets round 5 from here; rounds 6 to 7 are {lost}"
    assert frozen_sentence(7, 0) == f"{begin}; rounds 1 to 7 are {lost}"


def test_what_is_kept_is_lost_when_no_live_holder_has_stood_on_it_for_a_patience() -> None:
    kept, other = CommitId(b"k" * 32), CommitId(b"o" * 32)

    def has(unit: UnitName, commit: CommitId) -> bool:
        return (unit, commit) == (FIRST, kept)

    def look(*commits: CommitId) -> UnitLook:
        return UnitLook(FIRST, 5, (A, B)[: len(commits)], commits[0] if commits else NO_COMMIT, frozenset(commits))

    assert [stands_apart(each, has) for each in (look(other), look(other, kept), look())] == [True, False, False]
    since = {FIRST: 7.0, SECOND: 8.0}
    assert still_apart(since, [look(other)], has) == since
    assert still_apart(since, [look()], has) == since, "that nobody holds it says nothing"
    assert still_apart(since, [look(other, kept)], has) == {SECOND: 8.0}
    assert not is_lost(None, 1000.0)
    assert [is_lost(7.0, 7.0 + wait_s) for wait_s in (0.0, PATIENCE_S - 1.0, PATIENCE_S)] == [False, False, True]
