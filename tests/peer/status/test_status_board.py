from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import BulkCount, BulkKind, Network, TrafficCount, Way
from averaging.rounds.lineage.round_reports import Contributed, DownloadProgress, LineageSwitched, RoundCommitted
from peer.status.health import APART_AFTER_S
from peer.status.status_board import GivenToRun, StatusBoard
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import Disagreement
from tests.protocol.rounds.round_table import UNIT, Table
from tests.virtual import VirtualClock


async def test_a_commit_counts_for_us_only_with_a_contribution_of_this_process(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    seat = table.live()[0]
    record = seat.head.record
    assert record is not None
    entry = record.contributor(seat.peer)
    assert entry is not None
    board = StatusBoard(seat.peer, VirtualClock(), 0.0)
    board.publish(RoundCommitted(seat.head))
    assert board.rounds.counted == 0
    assert board.rounds.first_counted_unix_s is None
    board.publish(Contributed(entry.root))
    board.publish(RoundCommitted(seat.head))
    assert (board.rounds.counted, board.rounds.first_counted_unix_s) == (1, board.clock.unix_s())
    assert board.rounds.last is not None
    assert abs(sum(board.rounds.last.weights.values()) - 1.0) < 1e-9
    assert (board.rounds.last.coverage, board.rounds.last.lost, board.rounds.last.left_out) == (1.0, 0.0, 0.0)
    first, *others = record.slices
    part = Disagreement(seat.peer, first.stop_chunk, -50)
    slices = (replace(first, disagreeing=(part,)), *others)
    board.publish(RoundCommitted(replace(seat.head, content=replace(record, slices=slices))))
    assert board.rounds.last.left_out == pytest.approx(first.stop_chunk / others[-1].stop_chunk)


@pytest.mark.parametrize(("own", "grid", "found"), [(None, "de", 344.0), (12.0, "de", 12.0), (None, "", None)])
def test_the_runs_grid_counts_where_the_owner_gives_none(own: float | None, grid: str, found: float | None) -> None:
    board = StatusBoard(PeerId("me"), VirtualClock(), 0.0)
    board.g_per_kwh = own
    board.takes_part_in("our run", 1000, is_outbound_only=False, grid=grid)
    assert board.g_per_kwh == found


async def test_a_round_beside_the_spine_tells_what_its_own_unit_moved(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    seat = table.live()[0]
    own, other = (BulkKind(Way.DIRECT, "exchange", unit, "int8") for unit in (UNIT, "expert-7"))
    traffic = TrafficCount(3, 4, 57, 68, (BulkCount(own, 50, 60), BulkCount(other, 7, 8)))
    board = StatusBoard(seat.peer, VirtualClock(), 0.0, network=cast(Network, SimpleNamespace(traffic=lambda: traffic)))
    with capture_logs() as logs:
        for _ in range(2):
            board.publish_other_unit(RoundCommitted(seat.head))
    reported = [
        (line["unit"], line["bytes_up"], line["bytes_down"]) for line in logs if line["event"] == "round_came_beside"
    ]
    assert reported == [(UNIT, 50, 60), (UNIT, 0, 0)]


async def test_how_missed_rounds_came_is_told_by_what_moved_the_head(autojump_clock: trio.testing.MockClock) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 2 for seat in table.live()))
    seat = table.live()[0]
    tree = seat.state.tree
    path = tree.path(tree.root, seat.head.commit)
    assert path is not None
    board = StatusBoard(seat.peer, VirtualClock(), 0.0)
    board.downloading(DownloadProgress(1, 5, 5, 2))
    assert board.rounds.caught_up == "snapshot", "before the rounds begin"
    board.known_commits = lambda: tree
    board.rounds.caught_up = ""
    board.publish(RoundCommitted(tree.nodes[tree.tip].link))
    assert board.rounds.caught_up == "", "a round like any other"
    board.publish(RoundCommitted(path[0].link))
    assert board.rounds.caught_up == "replay"
    board.downloading(DownloadProgress(2, 5, 5, 2))
    board.publish(LineageSwitched(path, ()))
    assert board.rounds.caught_up == "snapshot"
    board.publish(LineageSwitched(path, ()))
    assert board.rounds.caught_up == "replay"


async def test_host_that_follows_another_lineage_for_long_is_told_and_no_longer_once_ours_is_the_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = (ChainLink(UnitName("whole"), CommitId(b"0" * 32), 0, (PeerId("peer"),), 0, 100),)
    now_s = 100.0
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    monkeypatch.setattr(board.clock, "monotonic_s", lambda: now_s)
    board.hears_host((), CommitId(b"x" * 32), 9)  # before there is a lineage
    board.hears_host(links, CommitId(b"x" * 32), 9)
    now_s += APART_AFTER_S
    board.hears_host(links, CommitId(b"x" * 32), 9)
    assert "the run is at round 9, this peer at a round 0" in board.divergence_text
    board.hears_host(links, links[-1].commit, links[-1].index)
    assert board.divergence_text == ""


async def test_peer_that_waits_for_the_state_of_the_run_is_not_apart_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    links = (ChainLink(UnitName("whole"), CommitId(b"0" * 32), 0, (PeerId("peer"),), 0, 100),)
    now_s = 100.0
    board = StatusBoard(PeerId("peer"), VirtualClock(), 5.0)
    monkeypatch.setattr(board.clock, "monotonic_s", lambda: now_s)
    board.say("waiting", "for the state of round 9")
    for _ in range(3):
        board.hears_host(links, CommitId(b"x" * 32), 9)
        now_s += APART_AFTER_S
    assert board.divergence_text == ""


def test_rounds_of_another_lineage_are_not_counted_twice_in_what_a_peer_gave() -> None:
    given = GivenToRun()
    given.saw(3, 50)  # seen before the rounds of earlier starts were read
    given.begin_with([(1, 10), (2, 0), (3, 40)])
    assert (given.rounds, given.tokens) == (2, 60)
    given.saw(2, 7)  # the head moved back to another lineage
    assert (given.rounds, given.tokens) == (2, 17)
