"""A curve from a host's page, which may be any page."""

from __future__ import annotations

import pytest

from averaging.curves.curve import CurvePoint
from averaging.curves.page_curve import curve_of_page, curve_of_status
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


def test_the_rounds_of_all_pages_are_in_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"index": index, "total_tokens": 100 * index, "members": ["a"], "unix_s": index} for index in range(1, 131)]

    def answer(url: str) -> dict[str, object]:
        if url.endswith("/api/status"):
            return {"run": "tiny", "rounds": rows[-60:], "num_rounds": 130}
        page = int(url.rpartition("page=")[2])
        stop = len(rows) - 60 * page
        return {"rounds": rows[max(0, stop - 60) : stop], "num_pages": 3}

    monkeypatch.setattr("averaging.curves.page_curve.get_json", answer)
    monkeypatch.setattr("averaging.host.http_client.get_json", answer)
    assert [point.index for point in curve_of_page("http://127.0.0.1:1/").points] == list(range(1, 131))
