"""A peer's curve from its history."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.history.round_log import HISTORY_FOLDER, RoundLog
from peer.history.seen_curve import read_curve
from protocol.errors import ConfigError
from tests.peer.history.test_round_log import line


def test_the_last_run_or_a_named_one_is_found(tmp_path: Path) -> None:
    assert read_curve(tmp_path) is None
    for letter, name, unix_s in (("a", "one", 9_000), ("b", "two", 1_000), ("c", "two", 2_000)):
        RoundLog(tmp_path / HISTORY_FOLDER / f"{letter * 16}.jsonl", name).write(
            [line(1, unix_s=unix_s), line(2, unix_s=unix_s)]
        )
    last = read_curve(tmp_path)
    assert last is not None
    assert (last.run, last.run_id) == ("one", "a" * 16)
    assert [(p.index, p.unix_s, p.total_tokens, p.num_members, p.own_tokens) for p in last.points] == [
        (1, 9_001.0, 100, 3, 5),
        (2, 9_002.0, 200, 3, 5),
    ]
    assert [(p.heldout_nats, p.train_nats) for p in last.points] == [(None, 1.5)] * 2
    by_id = read_curve(tmp_path, "bbbb")
    assert by_id is not None
    assert by_id.run_id == "b" * 16
    with pytest.raises(ConfigError, match="2 runs are called two"):
        read_curve(tmp_path, "two")
    assert read_curve(tmp_path, "three") is None
