from __future__ import annotations

from coordinator.progress.restart_report import GATHER_S, PeerStand, Restart, restart_sentence, stand_of
from protocol.ids import CommitId


def _commit(name: str) -> CommitId:
    return CommitId(name.encode().ljust(32, b"."))


def _lineage(*names: str) -> dict[CommitId, int]:
    return {_commit(name): index for index, name in enumerate(names)}


RESTART = Restart(_lineage(*(f"a{n}" for n in range(13))), 12, 100.0)


def test_a_peer_on_the_ledgers_lineage_at_its_round_or_later_means_that_nothing_was_lost() -> None:
    assert restart_sentence(RESTART, [PeerStand(11, 11), PeerStand(12, 12)], 101.0) == (
        "restarted at round 12; nothing was lost"
    )
    assert restart_sentence(RESTART, [PeerStand(30, 12)], 101.0) == "restarted at round 12; nothing was lost"


def test_nothing_is_said_before_a_peer_has_told_where_it_stands() -> None:
    assert restart_sentence(RESTART, [], 100.0 + 2 * GATHER_S) == ""


def test_peers_behind_the_ledger_are_given_time_and_then_the_loss_is_said() -> None:
    stands = [PeerStand(10, 10), PeerStand(11, 11)]
    assert restart_sentence(RESTART, stands, 101.0) == ""
    reported = restart_sentence(RESTART, stands, 100.0 + GATHER_S)
    assert "work since round 11 was lost" in reported


def test_the_same_round_of_another_lineage_is_a_loss_and_the_fork_is_named() -> None:
    stands = [PeerStand(12, 10), PeerStand(14, 10)]
    assert restart_sentence(RESTART, stands, 101.0) == ""
    reported = restart_sentence(RESTART, stands, 100.0 + GATHER_S)
    assert "nothing was lost" not in reported
    assert "went on from round 10 with other commits: 2 rounds were lost" in reported
    assert "1 round was lost" in restart_sentence(RESTART, [PeerStand(12, 11)], 100.0 + GATHER_S)


def test_where_a_peer_stands_is_the_newest_commit_that_it_shares_with_the_ledger() -> None:
    fork = [(_commit("b12"), 12), (_commit("b11"), 11), (_commit("a10"), 10), (_commit("a9"), 9)]
    assert stand_of(RESTART, iter(fork)) == PeerStand(12, 10)
    assert stand_of(RESTART, [(_commit("a12"), 12)]) == PeerStand(12, 12)
    assert stand_of(RESTART, []) is None
