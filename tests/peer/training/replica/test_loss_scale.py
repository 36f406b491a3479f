from __future__ import annotations

import torch

from peer.training.replica.loss_scale import FIRST_SCALE, GROWTH_INTERVAL, LossScale


def test_a_type_with_wide_exponents_needs_no_scale() -> None:
    scale = LossScale(is_needed=False)
    scale.note(is_finite=False)
    assert scale.factor == 1.0


def test_the_scale_halves_at_a_step_that_is_not_finite_and_doubles_after_many_that_are() -> None:
    scale = LossScale(is_needed=True)
    scale.note(is_finite=False)
    assert scale.factor == FIRST_SCALE / 2
    for _ in range(GROWTH_INTERVAL - 1):
        scale.note(is_finite=True)
    assert scale.factor == FIRST_SCALE / 2
    scale.note(is_finite=True)
    assert scale.factor == FIRST_SCALE


def test_the_scale_never_falls_below_one() -> None:
    scale = LossScale(is_needed=True)
    for _ in range(100):
        scale.note(is_finite=False)
    assert scale.factor == 1.0


def test_undoing_it_changes_no_digit() -> None:
    scale, values = LossScale(is_needed=True), torch.linspace(-1, 1, 7)
    scaled = [values * scale.factor]
    scale.undo(scaled)
    assert torch.equal(scaled[0], values)
