from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.status.tracing import trace
from peer.status.tracing.trace import write_trace
from protocol.errors import StorageError, TemporaryError

SPANS = [
    {"name": "snapshot", "unit": "fragment-0", "begin_s": 1.0, "end_s": 1.5, "detail": ""},
    {"name": "adopt", "unit": "fragment-0", "begin_s": 3.0, "end_s": 3.5, "detail": ""},
]


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, object]]:
    """The peer's answers, by the end of the address."""
    said: dict[str, dict[str, object]] = {"trace.json": {"spans": SPANS}, "status.json": {"name": "calm otter"}}
    monkeypatch.setattr(trace, "read_status_address", lambda folder: f"http://{folder.name}")
    monkeypatch.setattr(trace, "get_json", lambda url: said[url.rpartition("/")[2]])
    return said


def test_the_newest_round_of_a_running_peer_is_written_to_the_file(tmp_path: Path) -> None:
    target = tmp_path / "round.json"
    assert "2 spans of the newest round" in write_trace(tmp_path, target)
    events = json.loads(target.read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["snapshot", "adopt"]


def test_a_file_that_ends_in_svg_gets_a_picture(tmp_path: Path) -> None:
    target = tmp_path / "round.svg"
    assert write_trace(tmp_path, target).endswith("look at it with a browser")
    assert "peer calm otter" in target.read_text()
    assert target.read_text().startswith("<svg")


def test_the_sentence_says_how_long_training_stood_still_meanwhile(
    tmp_path: Path, answers: dict[str, dict[str, object]]
) -> None:
    steps = [{"name": "compute", "unit": "", "begin_s": at_s, "end_s": at_s + 0.5} for at_s in (1.0, 1.75, 2.25, 2.75)]
    answers["trace.json"] = {"spans": [*SPANS, *steps]}
    reported = write_trace(tmp_path, tmp_path / "round.json")
    assert (
        "6 spans of the newest round, in which it trained 88.9% of 2.2 s and stood still for 0.25 s at most;"
        in reported
    )


def test_a_peer_without_a_finished_round_says_so_and_leaves_no_file(
    tmp_path: Path, answers: dict[str, dict[str, object]]
) -> None:
    answers["trace.json"] = {"spans": SPANS[:1]}
    with pytest.raises(TemporaryError, match="no finished round"):
        write_trace(tmp_path, tmp_path / "round.json")
    assert not (tmp_path / "round.json").exists()


def test_trace_is_printed_for_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_trace(tmp_path, Path("-")).startswith("standard output has 2 spans")
    assert "traceEvents" in json.loads(capfd.readouterr().out)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        write_trace(tmp_path, tmp_path / "nowhere" / "round.json")
