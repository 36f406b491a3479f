from __future__ import annotations

import pytest

from coordinator.ledger.ledger import LossPoint
from coordinator.progress.heldout_core import expert_kind, heldout_points
from protocol.host.reports import HeldoutResult
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain import ChainLink

A, B = PeerId("a"), PeerId("b")
LINK = ChainLink(UnitName("trunk"), CommitId(b"c" * 32), 7, (A, B), 700, 100)
SHARES = (0.75, 0.25)


def _result(*of_experts: tuple[int, float], prose_nats: float | None = None) -> HeldoutResult:
    return HeldoutResult(LINK.commit, 99, 99, 2.0, prose_nats, of_experts)


def _reported(points: list[LossPoint]) -> list[tuple[str, int, int, float, PeerId]]:
    return [(point.kind, point.index, point.tokens, point.nats, point.peer) for point in points]


def test_a_run_without_experts_has_a_point_of_the_commit_for_each_peer_and_one_of_its_prose() -> None:
    points = heldout_points(A, _result(prose_nats=3.0), LINK, (), ())
    assert _reported(points) == [("heldout", 7, 700, 2.0, A), ("prose", 7, 700, 3.0, A)]
    assert heldout_points(A, _result(prose_nats=3.0), LINK, points, ()) == []
    assert _reported(heldout_points(B, _result(), LINK, points, ())) == [("heldout", 7, 700, 2.0, B)]


def test_each_expert_has_a_curve_and_the_whole_is_their_mean_by_their_share_once_all_are_there() -> None:
    first = heldout_points(A, _result((0, 1.0)), LINK, (), SHARES)
    assert _reported(first) == [(expert_kind(0), 7, 700, 1.0, A)]
    second = heldout_points(B, _result((1, 3.0), prose_nats=4.0), LINK, first, SHARES)
    assert _reported(second) == [
        (expert_kind(1), 7, 700, 3.0, B),
        ("heldout", 7, 700, pytest.approx(1.5), B),
        ("prose", 7, 700, 4.0, B),
    ]


def test_an_expert_that_two_have_measured_is_taken_from_the_first_and_another_commits_counts_for_nothing() -> None:
    first = heldout_points(A, _result((0, 1.0)), LINK, (), SHARES)
    assert heldout_points(B, _result((0, 1.1)), LINK, first, SHARES) == []
    before = [LossPoint(expert_kind(1), 6, 600, 3.0, B)]
    assert _reported(heldout_points(A, _result((0, 1.0)), LINK, before, SHARES)) == [(expert_kind(0), 7, 700, 1.0, A)]


def test_one_peer_that_holds_all_brings_all_and_an_expert_that_the_run_has_not_is_passed_over() -> None:
    points = heldout_points(A, _result((0, 1.0), (1, 3.0), (2, 9.0)), LINK, (), SHARES)
    assert [(point.kind, point.nats) for point in points] == [
        (expert_kind(0), 1.0),
        (expert_kind(1), 3.0),
        ("heldout", pytest.approx(1.5)),
    ]
