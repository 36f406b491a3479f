"""The notices of a host, from snapshots of its run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from averaging.notices.conditions import NoticeBook
from coordinator.ledger.ledger import LossPoint
from coordinator.progress.heldout_core import WHOLE
from coordinator.progress.run_core import Phase
from coordinator.progress.run_view import RunPicture
from coordinator.status.host_notices import NO_ROUND_AFTER_S, HostConditions
from protocol.identity.names import peer_name
from tests.browser.runs import NOW_S, moment
from tests.coordinator.progress.test_run_view import picture


def _events(conditions: HostConditions, seen: RunPicture, now_s: float, trouble: str = "") -> list[str]:
    return [each.event for each in conditions.of(seen, now_s, trouble)]


def _training() -> RunPicture:
    return moment(Path("checkpoints"), 1_700_000_000).picture


def test_a_run_that_goes_well_has_nothing_to_tell() -> None:
    assert _events(HostConditions(60.0), _training(), NOW_S) == []


def test_a_run_without_a_round_for_half_an_hour_or_three_long_intervals_is_told() -> None:
    seen, short, long = _training(), HostConditions(60.0), HostConditions(3600.0)
    seen = replace(seen, peers={p: replace(e, seen_s=NOW_S + 20_000) for p, e in seen.peers.items()})
    assert _events(short, seen, NOW_S) == _events(long, seen, NOW_S) == []
    assert _events(short, seen, NOW_S + NO_ROUND_AFTER_S) == ["no_round"]
    assert _events(long, seen, NOW_S + NO_ROUND_AFTER_S) == []
    assert _events(long, seen, NOW_S + 3 * 3600.0) == ["no_round"]
    next_round = replace(seen, state=replace(seen.state, index=seen.state.index + 1))
    assert _events(short, next_round, NOW_S + NO_ROUND_AFTER_S + 1) == []


def test_too_few_of_the_last_rounds_peers_is_told_once_it_has_lasted() -> None:
    seen, conditions, book = _training(), HostConditions(60.0), NoticeBook({})
    gone = replace(seen, peers={peer: replace(entry, seen_s=NOW_S - 100.0) for peer, entry in seen.peers.items()})
    (lost,) = conditions.of(gone, NOW_S)
    assert (lost.event, lost.text) == (
        "quorum_lost",
        "0 of the 3 peers of the last round are heard, too few to commit another",
    )
    assert book.due([lost], 0.0, 0.0) == []
    assert book.due([lost], lost.for_s, lost.for_s) == [lost]


def test_bans_and_the_end_are_told_if_they_come_while_the_host_is_up() -> None:
    conditions, seen = HostConditions(60.0), replace(picture(), banned=frozenset("ab"))
    assert "peer_banned" not in _events(conditions, seen, 100.0)
    banned = [
        each for each in conditions.of(replace(seen, banned=frozenset("abc")), 100.0) if each.event == "peer_banned"
    ]
    assert [(each.text, each.mark) for each in banned] == [("1 peer banned since the host started", 3)]
    finished = replace(seen, state=replace(seen.state, phase=Phase.FINISHED))
    assert _events(conditions, finished, 100.0) == ["run_complete"]
    assert _events(HostConditions(60.0), finished, 100.0) == []


def test_branches_and_a_full_disk_are_told() -> None:
    seen = replace(_training(), num_forks=1)
    assert _events(HostConditions(60.0), seen, NOW_S, "the disk is full") == ["disk_full", "branches"]


def test_a_held_out_loss_that_rises_beyond_its_noise_is_told_with_who_was_in_the_rounds() -> None:
    seen = _training()
    last = seen.rounds[-1].row
    before = [LossPoint(WHOLE, last.index - 12 + number, number, 3.0 - 0.01 * number, "") for number in range(11)]
    worse = [LossPoint(WHOLE, index, 100, 9.0, "") for index in (last.index - 1, last.index)]
    assert _events(HostConditions(60.0), replace(seen, loss_points=(*before, *worse[:1])), NOW_S) == []
    (found,) = HostConditions(60.0).of(replace(seen, loss_points=(*before, *worse)), NOW_S)
    assert (found.event, found.mark) == ("loss_rose", last.index - 2)
    assert f"rose from 2.9 at round {last.index - 2} to 9 at round {last.index}" in found.text
    assert f"; in all of these rounds were {peer_name(sorted(last.members)[0])}" in found.text
