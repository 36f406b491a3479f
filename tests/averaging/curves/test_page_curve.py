"""A curve from a host's page, which may be any page."""

from __future__ import annotations

import pytest

from averaging.curves.curve import CurvePoint
from averaging.curves.page_curve import curve_of_status
from protocol.errors import UnreachableError


def test_rounds_and_losses_of_the_page_become_points_and_nonsense_is_left_out() -> None:
    status: dict[str, object] = {
        "run": "our run",
        "run_id": "ab" * 32,
        "rounds": [
            {"index": 2, "total_tokens": 900, "members": ["a", "b"], "unix_s": None},
            {"index": 1, "total_tokens": 500, "members": ["a"], "unix_s": 1000},
            {"index": "3", "total_tokens": 900, "members": []},
            7,
        ],
        "heldout": [{"index": 2, "tokens": 900, "nats": 1.5}, {"index": 1, "nats": "low"}],
        "train_loss": [{"index": 1, "tokens": 500, "nats": 2.5}],
    }
    curve = curve_of_status(status, "http://host")
    assert (curve.run, curve.run_id) == ("our run", "ab" * 32)
    assert curve.points == (
        CurvePoint(1, 1000.0, 500, 1, None, None, 2.5),
        CurvePoint(2, None, 900, 2, None, 1.5, None),
    )
    with pytest.raises(UnreachableError, match="no host's page at http://other"):
        curve_of_status({"hello": 1}, "http://other")
