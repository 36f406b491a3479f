from __future__ import annotations

from peer.restart import restart_sentence


def test_a_restart_with_all_that_is_proven_on_disk_says_that_nothing_was_lost() -> None:
    assert restart_sentence(12, 12).startswith("restarted at round 12; nothing was lost")


def test_a_restart_that_lacks_bytes_of_proven_rounds_says_since_when_work_was_lost() -> None:
    told = restart_sentence(12, 14)
    assert told.startswith("restarted at round 12; work since round 12 was lost")
    assert "up to 14" in told
