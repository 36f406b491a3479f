"""The holders of each expert, at the start and afterwards, as they report to the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.history.old_copy import without_rosters
from coordinator.progress.unit_holders import (
    FROZEN_AFTER_S,
    UnitHolders,
    check_claims,
    claim_sentence,
    empty_since,
    founding_units,
    frozen_units,
    newest_rounds,
    units_held,
    unproven,
)
from protocol.errors import RemoteProtocolError
from protocol.host.reports import HeldoutResult, PeerReport, UnitStanding
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.start import StartUnit

A, B, C = (PeerId(name) for name in "abc")
TRUNK, FIRST, SECOND = (UnitName(name) for name in ("trunk", "expert-0", "expert-1"))
UNITS = tuple(StartUnit(unit, b"f" * 32, Root(bytes(32))) for unit in (TRUNK, FIRST, SECOND))
PARTS = (FIRST, SECOND)
COMMIT = CommitId(b"c" * 32)


def _report(*experts: int, room: int = 1, head: CommitId = COMMIT, index: int = 0) -> PeerReport:
    beside = tuple(UnitStanding(UnitName(f"expert-{e}"), COMMIT, Root(bytes(32)), index) for e in experts)
    return PeerReport("training", "", TRUNK, head=head, experts=experts, expert_room=room, beside=beside)


def test_founders_vote_on_the_experts_that_they_hold_and_all_on_the_trunk() -> None:
    founding = founding_units(UNITS, PARTS, {A: _report(1), B: _report(), C: _report()})
    assert [unit.roster for unit in founding] == [(), (B, C), (A,)]
    assert without_rosters(founding) == UNITS
    roomy = founding_units(UNITS, PARTS, {A: _report(room=2)})
    assert [unit.roster for unit in roomy] == [(), (A,), (A,)]


def test_units_of_a_run_without_experts_stay_what_they_are() -> None:
    assert founding_units(UNITS[:1], (), {A: _report()}) == UNITS[:1]
    assert units_held((), {A: _report()}, {}) == ()


def test_holders_are_those_who_are_there_and_take_part_and_rounds_the_newest_that_were_told() -> None:
    newest = newest_rounds(newest_rounds({}, _report(0, 1, index=4)), _report(1, index=3))
    assert newest == {FIRST: 4, SECOND: 4}
    held = units_held(PARTS, {A: _report(1), B: _report(1), C: _report(0, head=CommitId(b""))}, newest)
    assert held == (UnitHolders(FIRST, (), 4), UnitHolders(SECOND, (A, B), 4))


def test_who_claims_an_expert_that_it_does_not_hold_is_no_holder_and_is_named() -> None:
    liar = replace(_report(0, index=2), experts=(0, 1))
    assert unproven(liar, PARTS) == (SECOND,)
    assert unproven(_report(0, 1), PARTS) == ()
    assert unproven(replace(liar, head=CommitId(b"")), PARTS) == ()  # before the start it says what it wants
    held = units_held(PARTS, {A: liar, B: _report(0)}, {})
    assert [unit.holders for unit in held] == [(A, B), ()]
    assert claim_sentence("calm-otter", (SECOND,)) == (
        "calm-otter says that it holds expert-1, but reports no state of it: it does not count as a holder"
    )


def test_a_holder_of_the_stage_that_all_progress_is_told_by_counts_there() -> None:
    stages = (UnitName("stage-0"), UnitName("stage-1"))
    first = replace(_report(0), unit=stages[0], beside=())
    assert [unit.holders for unit in units_held(stages, {A: first}, {})] == [(A,), ()]


def test_an_expert_out_of_range_is_one_clear_line() -> None:
    check_claims(_report(0, 1), PARTS)
    with pytest.raises(
        RemoteProtocolError, match=r"a report that names expert 2; expected 0 to 1; start this peer again"
    ):
        check_claims(_report(2), PARTS)
    with pytest.raises(RemoteProtocolError, match=r"expert 0; expected none: this run has no experts"):
        check_claims(_report(0), ())


def test_losses_of_an_expert_are_taken_from_those_who_hold_it_alone() -> None:
    def measured(report: PeerReport, expert: int) -> PeerReport:
        return replace(report, heldout=(HeldoutResult(COMMIT, 4, 100, 2.0, of_experts=((expert, 2.0),)),))

    check_claims(measured(_report(1), 1), PARTS)
    claimed = replace(_report(0), experts=(0, 1))
    for report in (measured(_report(0), 1), measured(claimed, 1)):
        with pytest.raises(
            RemoteProtocolError, match=r"losses of expert 1 in a report; expected of experts that it holds: 0"
        ):
            check_claims(report, PARTS)


def test_an_expert_that_nobody_holds_for_a_while_is_frozen_until_somebody_does() -> None:
    nobody, somebody = UnitHolders(FIRST, ()), UnitHolders(FIRST, (A,))
    empty = empty_since({}, (nobody, UnitHolders(SECOND, (B,))), 100.0)
    assert empty == {FIRST: 100.0}
    empty = empty_since(empty, (nobody,), 109.0)
    assert frozen_units(empty, 109.0) == frozenset()
    assert frozen_units(empty, 100.0 + FROZEN_AFTER_S) == {FIRST}
    assert empty_since(empty, (somebody,), 120.0) == {}
