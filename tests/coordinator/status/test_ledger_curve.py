"""The curve of a hosted run from its ledger: the longest lineage, with mean losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.ledger import LossPoint
from coordinator.status.ledger_curve import curve_points, read_curve
from protocol.ids import PeerId
from tests.coordinator.chain_world import Chain, rows_of


def test_the_longest_lineage_is_shown_with_the_mean_of_its_losses() -> None:
    chain = Chain()
    chain.commit()
    chain.commit()
    fork = chain.clone()
    fork.commit((9,))
    chain.commit()
    chain.commit()
    certificates = [*chain.certificates, fork.certificates[-1]]
    losses = [
        LossPoint("heldout", 2, 10, 1.0, PeerId("a")),
        LossPoint("train", 3, 10, 2.0, PeerId("a")),
        LossPoint("train", 3, 11, 4.0, PeerId("b")),
    ]
    points = curve_points(rows_of(certificates), losses)
    assert [point.index for point in points] == [1, 2, 3, 4]
    assert [point.heldout_nats for point in points] == [None, 1.0, None, None]
    assert points[2].train_nats == pytest.approx(3.0)
    assert [point.total_tokens for point in points] == sorted(point.total_tokens for point in points)
    assert all(point.num_members >= 1 and point.own_tokens is None for point in points)


def test_a_folder_without_a_run_has_no_curve(tmp_path: Path) -> None:
    assert read_curve(tmp_path) is None
    assert curve_points([], []) == []
