from __future__ import annotations

from coordinator.restart import GATHER_S, Restart, restart_sentence

RESTART = Restart(12, 100.0)


def test_a_peer_at_the_ledgers_round_or_later_means_that_nothing_was_lost() -> None:
    assert restart_sentence(RESTART, [11, 12], 101.0) == "restarted at round 12; nothing was lost"
    assert restart_sentence(RESTART, [30], 101.0) == "restarted at round 12; nothing was lost"


def test_nothing_is_said_before_a_peer_has_told_where_it_stands() -> None:
    assert restart_sentence(RESTART, [], 100.0 + 2 * GATHER_S) == ""


def test_peers_behind_the_ledger_are_given_time_and_then_the_loss_is_said() -> None:
    assert restart_sentence(RESTART, [10, 11], 101.0) == ""
    told = restart_sentence(RESTART, [10, 11], 100.0 + GATHER_S)
    assert "work since round 11 was lost" in told
