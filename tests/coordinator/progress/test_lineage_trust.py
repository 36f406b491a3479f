"""How long a holder's word counts of which nothing comes, and what is said of whoever gave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from coordinator.progress.lineage_trust import (
    LIE_REST_S,
    LONGEST_REST_S,
    REST_PER_ASKED,
    HolderClaim,
    KeptLine,
    OtherLineage,
    advance_time,
    doubt_after,
    not_shown,
    of_bytes,
    shown_apart,
    to_bytes,
    word_over_sentence,
)
from coordinator.progress.live_lineages import PATIENCE_S, STILL_S
from protocol.host.calls import NO_COMMIT
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, UnitName

A, B = PeerId("a"), PeerId("b")
UNIT = UnitName("expert-0")
GENESIS, COMMON, KEPT, OTHER, NEXT = (CommitId(letter * 32) for letter in (b"g", b"c", b"k", b"o", b"n"))
LINE = KeptLine(KEPT, {GENESIS: 0, COMMON: 5, KEPT: 7})
HONEST = HolderClaim(A, 6, OTHER)


def _shown(now_s: float = 0.0) -> OtherLineage:
    return shown_apart(None, LINE, 5, 6, now_s)


def _watched(apart: OtherLineage, reported: list[HolderClaim], from_s: int, to_s: int) -> OtherLineage:
    """Looked at once a second."""
    for second in range(from_s, to_s):
        looked = advance_time(apart, reported, LINE, float(second))
        assert looked is not None
        apart = looked
    return apart


def test_what_is_kept_is_lost_when_others_showed_another_side_and_nobody_has_stood_on_it_for_a_patience() -> None:
    apart = _watched(_shown(), [HONEST], 1, 100)
    assert not apart.is_lost(PATIENCE_S)
    assert apart.is_lost(1.0 + PATIENCE_S)
    assert not _watched(apart, [HONEST, HolderClaim(B, 7, KEPT)], 100, 101).is_lost(1000.0), (
        "a holder of it is there again"
    )
    assert _watched(apart, [], 100, 200).is_lost(200.0), "that nobody holds it says nothing"


@pytest.mark.parametrize(("index", "commit"), [(5, COMMON), (0, GENESIS), (7, NO_COMMIT), (9, NEXT)])
def test_a_holder_before_the_fork_or_nowhere_or_at_an_unknown_commit_keeps_nothing_from_being_lost(
    index: int, commit: CommitId
) -> None:
    assert _watched(_shown(), [HONEST, HolderClaim(B, index, commit)], 1, 100).is_lost(1.0 + PATIENCE_S)


def test_who_says_that_it_stands_on_what_is_kept_is_believed_for_minutes_while_others_go_on_and_not_for_ever() -> None:
    liar, apart = HolderClaim(B, 7, KEPT), _shown()
    for second in range(1, int(STILL_S + PATIENCE_S) + 1):
        assert not apart.is_lost(float(second - 1))
        if second == 30:
            apart = shown_apart(apart, LINE, 5, 8, 30.0)
        apart = _watched(apart, [HONEST, liar], second, second + 1)
    assert apart.is_lost(STILL_S + PATIENCE_S)
    assert apart.claims([HONEST, liar], LINE) == (B,)
    said = word_over_sentence(UNIT, [B], apart)
    assert peer_name(B) in said
    assert "from round 6 to 8" in said


def test_where_nobody_goes_on_anywhere_who_says_that_it_stands_on_what_is_kept_is_believed() -> None:
    apart = _watched(_shown(), [HONEST, HolderClaim(B, 7, KEPT)], 1, int(3 * STILL_S))
    assert not apart.is_word_over
    assert apart.lost_since_s is None


def test_a_new_commit_of_what_is_kept_ends_all_doubts_about_it() -> None:
    apart = _watched(_shown(), [HONEST], 1, 100)
    grown = KeptLine(NEXT, {**LINE.places, NEXT: 8})
    assert advance_time(apart, [HONEST], grown, 101.0) is None
    again = shown_apart(apart, grown, 5, 8, 102.0)
    assert (again.still_s, again.first_index, again.lost_since_s) == (0.0, 8, None)


def test_time_does_not_count_while_all_are_on_what_is_kept() -> None:
    liar = HolderClaim(B, 7, KEPT)
    apart = _watched(shown_apart(_shown(), LINE, 5, 8, 0.0), [liar], 1, int(2 * STILL_S))
    assert apart.still_s == 0.0
    assert not _watched(apart, [HONEST, liar], int(2 * STILL_S), int(2 * STILL_S) + 100).is_word_over


def test_a_side_that_parts_earlier_than_another_decides_who_stands_beside_both() -> None:
    apart = shown_apart(shown_apart(None, LINE, 6, 7, 0.0), LINE, 4, 5, 0.0)
    assert (apart.fork_index, apart.index) == (4, 7)
    assert apart.claims([HolderClaim(B, 5, COMMON)], LINE) == (B,)


def test_who_has_waited_for_minutes_goes_on_waiting_after_a_restart_with_a_patience_left_at_least() -> None:
    liar = HolderClaim(B, 7, KEPT)
    apart = shown_apart(_watched(_shown(), [HONEST, liar], 1, 181), LINE, 5, 8, 180.0)
    again = of_bytes(to_bytes(apart), 9000.0)
    assert again == replace(apart, looked_s=9000.0, still_s=min(apart.still_s, STILL_S - PATIENCE_S))
    over = replace(apart, still_s=10 * STILL_S)
    late = of_bytes(to_bytes(over), 0.0)
    assert late is not None
    assert not _watched(late, [HONEST, liar], 1, int(PATIENCE_S)).is_word_over, "it may have something to show"
    assert _watched(late, [HONEST, liar], 1, int(PATIENCE_S) + 2).is_word_over


@pytest.mark.parametrize("kept", [b"", b"?", to_bytes(_shown())[:-1], to_bytes(_shown())[:-8] + b"\xff" * 8])
def test_a_damaged_file_tells_nothing(kept: bytes) -> None:
    assert of_bytes(kept, 0.0) is None


def test_a_host_that_restarts_every_three_minutes_comes_to_a_decision() -> None:
    reported, apart, now_s = [HONEST, HolderClaim(B, 7, KEPT)], shown_apart(_shown(), LINE, 5, 8, 0.0), 0
    for _ in range(3):
        apart = _watched(apart, reported, now_s, now_s + 180)
        now_s += 180
        if apart.is_lost(float(now_s)):
            return
        again = of_bytes(to_bytes(apart), float(now_s))
        assert again is not None
        apart = again
    raise AssertionError(f"undecided: {apart}")


@pytest.mark.parametrize(
    ("reported", "shown", "is_lie"),
    [
        (HolderClaim(A, 7, KEPT), {}, False),
        (HolderClaim(A, 0, GENESIS), {}, False),
        (HolderClaim(A, 8, KEPT), {NEXT: 8}, False),
        (HolderClaim(A, 6, OTHER), {OTHER: 6, NEXT: 7}, False),
        (HolderClaim(A, 8, KEPT), {}, True),
        (HolderClaim(A, 1 << 60, KEPT), {NEXT: 8}, True),
        (HolderClaim(A, 6, OTHER), {}, True),
        (HolderClaim(A, 8, OTHER), {NEXT: 8}, True),
    ],
)
def test_who_tells_of_a_commit_or_a_round_that_it_does_not_show_is_named(
    reported: HolderClaim, shown: Mapping[CommitId, int], is_lie: bool
) -> None:
    said = not_shown(UNIT, reported, LINE, shown)
    assert bool(said) == is_lie
    if is_lie:
        assert said.startswith(f"{peer_name(A)} reports round {reported.index} of {UNIT}")


def test_each_further_lie_is_left_alone_for_twice_as_long_and_a_stall_for_some_times_as_long_as_it_took() -> None:
    doubt, rests = None, []
    for _ in range(9):
        doubt = doubt_after(doubt, 0.1, 1000.0, is_lie=True)
        rests.append(doubt.until_s - 1000.0)
    assert rests[:4] == [LIE_REST_S, 2 * LIE_REST_S, 4 * LIE_REST_S, 8 * LIE_REST_S]
    assert rests[-1] == LONGEST_REST_S
    stalled = doubt_after(None, 600.0, 1000.0, is_lie=False)
    assert (stalled.until_s, stalled.num_lies) == (1000.0 + REST_PER_ASKED * 600.0, 0)
