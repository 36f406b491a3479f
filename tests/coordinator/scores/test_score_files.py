from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest

from coordinator.ledger.ledger import CheckpointRow
from coordinator.scores.score_core import KnownScore, ScoredTask
from coordinator.scores.score_files import SCORES_NAME, scores_text, write_scores
from coordinator.scores.score_rows import ScoreRow
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.run.evaluate_section import EvaluateSection
from protocol.scores.score_result import ScoreResult

TASK = ScoredTask(EvaluateSection(name="facts", file="f", every_rounds=2), 9, 0.25)


def _score(index: int) -> tuple[ScoreRow, KnownScore]:
    commit = CommitId(bytes([index]) * 32)
    result = ScoreResult("facts", commit, index, 0, 9, 3, 4)
    row = ScoreRow("facts", 0, index, commit, 100 * index, PeerId("p"), b"signed %d" % index)
    return row, KnownScore(result, PeerId("p"), 100 * index)


def _row(index: int) -> CheckpointRow:
    return CheckpointRow(CommitId(bytes(32)), UnitName("u"), index, 100, Root(bytes(32)), f"{index:08d}-a", 7)


def test_a_checkpoint_has_the_scores_up_to_its_round_with_what_was_signed() -> None:
    values = json.loads(scores_text([TASK], [_score(2), _score(4), _score(6)], 5, "ab" * 32))
    assert [point["index"] for point in values["tasks"][0]["points"]] == [2, 4]
    assert values["tasks"][0]["points"][0]["acc_norm"] == 4 / 9
    assert [b64decode(each["envelope"]) for each in values["signed"]] == [b"signed 2", b"signed 4"]
    assert values["run_id"] == "ab" * 32


def test_files_are_written_whole_and_a_checkpoint_that_is_gone_is_left_out(tmp_path: Path) -> None:
    rows = [_row(2), _row(4)]
    (tmp_path / rows[1].path).mkdir()
    write_scores(tmp_path, rows, ["one", "two"])
    assert [path.name for path in (tmp_path / rows[1].path).iterdir()] == [SCORES_NAME]
    written_s = (tmp_path / rows[1].path / SCORES_NAME).stat().st_mtime_ns
    write_scores(tmp_path, rows, ["one", "two"])
    assert (tmp_path / rows[1].path / SCORES_NAME).stat().st_mtime_ns == written_s
    write_scores(tmp_path, rows, ["one", "three"])
    assert (tmp_path / rows[1].path / SCORES_NAME).read_text() == "three"


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / _row(2).path).mkdir()

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coordinator.scores.score_files.write_whole", full)
    with pytest.raises(StorageError, match="No space left"):
        write_scores(tmp_path, [_row(2)], ["one"])
