from __future__ import annotations

import trio.testing

from averaging.network.clocks import VirtualClock
from averaging.rounds.download import DownloadProgress
from peer.board import Board
from protocol.ids import PeerId
from tests.protocol.rounds.round_table import Table


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
    board = Board(seat.peer, VirtualClock(), 0.0)
    board.publish("committed", {"link": seat.head})
    assert board.rounds_counted == 0
    assert board.first_counted_unix_s is None
    board.publish("contributed", {"root": entry.root})
    board.publish("committed", {"link": seat.head})
    status = board.read()
    assert (status.rounds_counted, status.first_counted_unix_s) == (1, board.clock.unix_s())
    assert status.last_round is not None
    assert abs(sum(status.last_round.weights.values()) - 1.0) < 1e-9
    assert status.last_round.coverage == 1.0


def test_before_anything_is_there_the_board_says_where_we_are_and_why() -> None:
    board = Board(PeerId("peer"), VirtualClock(), 5.0)
    board.say("waiting", "for the run to start")
    status = board.read()
    assert (status.state, status.reason, status.head, status.index) == ("waiting", "for the run to start", "", 0)


def test_a_download_that_ended_before_it_was_whole_is_no_longer_shown() -> None:
    board = Board(PeerId("peer"), VirtualClock(), 5.0)
    board.publish("downloading", {"progress": DownloadProgress(index=3, bytes_here=10, bytes_all=40, num_donors=2)})
    status = board.read()
    assert (status.download_bytes_here, status.download_bytes_all, status.download_donors) == (10, 40, 2)
    board.publish("download_ended", {})
    status = board.read()
    assert (status.download_bytes_here, status.download_bytes_all, status.download_donors) == (0, 0, 0)


def test_what_a_start_found_on_the_disk_stays_in_the_status() -> None:
    board = Board(PeerId("peer"), VirtualClock(), 5.0)
    assert board.read().restarted == ""
    board.has_restarted("restarted at round 3; nothing was lost")
    board.say("training", "training")
    assert board.read().restarted == "restarted at round 3; nothing was lost"
