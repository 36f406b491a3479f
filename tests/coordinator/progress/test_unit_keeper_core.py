"""Which expert is fetched next, and what is said of one that nobody holds any more."""

from __future__ import annotations

import pytest

from coordinator.progress.lineage_trust import Doubt, HolderClaim, KeptLine
from coordinator.progress.unit_keeper_core import (
    UnitClaims,
    askable,
    believable,
    claims_on,
    frozen_sentence,
    next_visit,
    stand_elsewhere,
    unit_claims,
)
from protocol.host.calls import NO_ROOT
from protocol.host.reports import PeerReport, UnitStanding
from protocol.ids import CommitId, PeerId, UnitName

A, B, C = (PeerId(name) for name in "abc")
FIRST, SECOND = UnitName("expert-0"), UnitName("expert-1")
GENESIS, KEPT, OTHER = (CommitId(letter * 32) for letter in (b"g", b"k", b"o"))
LINE = KeptLine(KEPT, {GENESIS: 0, KEPT: 7})


def _look(unit: UnitName, index: int, holders: tuple[PeerId, ...], commit: CommitId = KEPT) -> UnitClaims:
    return claims_on(unit, dict.fromkeys(holders, index), dict.fromkeys(holders, commit))


def test_the_holders_of_each_expert_are_told_of_whoever_is_furthest_first() -> None:
    def report(unit: UnitName, index: int) -> PeerReport:
        standing = UnitStanding(unit, CommitId(b"c" * 32), NO_ROOT, index)
        return PeerReport("training", "", UnitName("trunk"), beside=(standing,))

    live = {B: report(FIRST, 2), A: report(FIRST, 2), C: report(FIRST, 5)}
    claims = tuple(HolderClaim(peer, index, CommitId(b"c" * 32)) for peer, index in ((C, 5), (A, 2), (B, 2)))
    found, nobody = unit_claims((FIRST, SECOND), live)
    assert (found, nobody) == (UnitClaims(FIRST, claims), UnitClaims(SECOND))
    assert (found.index, found.holders, nobody.index, nobody.holders) == (5, (C, A, B), 0, ())
    assert unit_claims((), live) == ()


def test_what_several_hold_may_wait_and_what_one_holds_may_not() -> None:
    several, single = _look(FIRST, 8, (A, B)), _look(SECOND, 5, (C,))
    assert next_visit([several, single], {FIRST: 5, SECOND: 5}, every_rounds=4) is None
    assert next_visit([several, single], {FIRST: 4, SECOND: 5}, every_rounds=4) == several
    assert next_visit([several, single], {FIRST: 5, SECOND: 4}, every_rounds=4) == single
    assert next_visit([several, single], {SECOND: 2}, every_rounds=4) == several, "it is further behind"


def test_whatever_is_told_of_an_expert_the_others_get_their_turn() -> None:
    reported_far, honest = _look(FIRST, 1 << 60, (A,)), _look(SECOND, 6, (B,))
    kept, visited_s = {FIRST: 5, SECOND: 5}, dict[UnitName, float]()
    turns = []
    for now_s in (10.0, 20.0, 30.0, 40.0):
        look = next_visit([reported_far, honest], kept, 4, visited_s=visited_s)
        assert look is not None
        visited_s[look.unit] = now_s
        turns.append(look.unit)
    assert turns == [FIRST, SECOND, FIRST, SECOND]


def test_holders_that_stand_on_another_side_are_visited_though_they_are_no_further() -> None:
    look = _look(FIRST, 5, (A, B))
    assert next_visit([look], {FIRST: 7}, every_rounds=4, elsewhere=[FIRST]) == look
    assert next_visit([look], {FIRST: 7}, every_rounds=4, elsewhere=[SECOND]) is None


def test_a_holder_stands_elsewhere_where_what_it_has_is_no_newer_and_not_kept_whatever_others_tell() -> None:
    lines = {FIRST: LINE}
    assert not stand_elsewhere([_look(FIRST, 7, (A, B))], lines)
    assert not stand_elsewhere([_look(FIRST, 8, (A,), OTHER)], lines), "a newer round may be the next one"
    assert not stand_elsewhere([_look(SECOND, 5, (A,), OTHER)], lines), "nothing is kept of it"
    assert stand_elsewhere([_look(FIRST, 7, (A,), OTHER)], lines) == {FIRST}
    for index, commit in ((7, KEPT), (8, CommitId(b"?" * 32)), (1 << 60, KEPT)):
        look = claims_on(FIRST, {A: index, B: 6}, {A: commit, B: OTHER})
        assert stand_elsewhere([look], lines) == {FIRST}, "one who says that it is further hides nobody"


def test_who_was_asked_in_vain_is_asked_later_and_whose_word_was_a_lie_is_not_heard_until_then() -> None:
    look = _look(FIRST, 5, (A, B, C))
    doubts = {A: Doubt(100.0), B: Doubt(100.0, num_lies=1)}
    assert askable(look, doubts, 99.0).holders == (C,)
    assert believable(look, doubts, 99.0).holders == (A, C)
    assert askable(look, doubts, 100.0) == believable(look, doubts, 100.0) == look


@pytest.mark.parametrize("holders", [(), (A,), (A, B)])
def test_what_nobody_holds_or_what_stands_behind_is_not_fetched(holders: tuple[PeerId, ...]) -> None:
    assert next_visit([_look(FIRST, 3, holders)], {FIRST: 3}, every_rounds=1) is None


def test_of_a_frozen_expert_it_is_said_which_rounds_are_lost() -> None:
    begin = "no live peer holds it: it waits for a holder"
    assert frozen_sentence(0, 0) == begin
    assert frozen_sentence(7, 7) == frozen_sentence(7, 8) == f"{begin}, which gets all of its 7 rounds from here"
    lost = "lost unless a former holder returns"
    assert frozen_sentence(7, 6) == f"{begin}, which gets round 6 from here; round 7 is {lost}"
    assert frozen_sentence(7, 5) == f"{begin}, which gets round 5 from here; rounds 6 to 7 are {lost}"
    assert frozen_sentence(7, 0) == f"{begin}; rounds 1 to 7 are {lost}"
