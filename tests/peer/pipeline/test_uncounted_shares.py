from __future__ import annotations

import torch

from peer.pipeline.transport.lane_work import LaneShare
from peer.pipeline.uncounted_shares import Anchors
from protocol.ids import CommitId

FIRST, SECOND, THIRD = (CommitId(bytes([number]) * 32) for number in (1, 2, 3))


def _anchor(value: float) -> torch.Tensor:
    return torch.full((4,), value)


def test_a_share_keeps_its_distance_in_its_own_type_and_with_its_name() -> None:
    anchors, share = Anchors(), LaneShare(7, 1, 3, 1024, torch.full((4,), 1.5, dtype=torch.float64))
    anchors.moved_to(FIRST, _anchor(1.0))
    anchors.moved_to(SECOND, _anchor(5.0))
    assert anchors.move is not None
    moved = anchors.move.of(share)
    assert (moved.lane, moved.round, moved.tokens, moved.theta_N.dtype) == (7, 3, 1024, torch.float64)
    assert moved.theta_N.tolist() == [5.5] * 4
    assert share.theta_N.tolist() == [1.5] * 4


def test_the_last_move_is_between_two_commits_that_follow_one_another_here() -> None:
    anchors = Anchors()
    assert not anchors.is_behind(FIRST), "nothing was given here yet"
    anchors.moved_to(FIRST, _anchor(1.0))
    assert anchors.move is None
    assert anchors.is_behind(SECOND)
    for head, value in ((SECOND, 2.0), (THIRD, 3.0)):
        anchors.moved_to(head, _anchor(value))
    anchors.moved_to(THIRD, anchors.move.after_N if anchors.move is not None else _anchor(0.0))
    assert anchors.move is not None
    assert (anchors.move.base, anchors.move.head) == (SECOND, THIRD)


def test_a_state_that_was_healed_or_that_no_commit_led_to_is_no_move() -> None:
    anchors = Anchors()
    for head, value in ((FIRST, 1.0), (SECOND, 2.0)):
        anchors.moved_to(head, _anchor(value))
    anchors.moved_to(SECOND, _anchor(2.5))
    assert anchors.move is None
    anchors.forget()
    anchors.moved_to(THIRD, _anchor(3.0))
    assert anchors.move is None
