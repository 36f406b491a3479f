"""The history on disk: over restarts, lineages, half lines and a disk that refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.rounds.lineage.round_reports import LineageSwitched, RoundCommitted
from peer.history.round_log import (
    HISTORY_FOLDER,
    WRITE_EVERY_S,
    RoundLog,
    history_path,
    keep_history,
    read_histories,
    read_history,
    recall_history,
)
from peer.status.status import PeerStatus
from peer.status.status_board import StatusBoard
from tests.protocol.rounds.round_table import Table
from tests.virtual import VirtualClock


def line(index: int, own: int = 5, unix_s: int = 1_000) -> dict[str, object]:
    return {"t": unix_s + index, "i": index, "all": 100 * index, "n": 3, "own": own, "loss": 1.5}


def status(state: str = "training", worker: str = "training") -> Callable[[], PeerStatus]:
    return lambda: PeerStatus(peer="p", name="n", state=state, worker_state=worker, loss=1.25)


async def test_rounds_and_time_of_training_are_on_disk_and_go_on_after_a_restart(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 2 for seat in table.live()))
    seat = table.live()[0]
    tree = seat.state.tree
    links = [node.link for node in tree.path(tree.root, seat.head.commit) or ()]
    path = history_path(tmp_path / "runs" / ("ab" * 8))
    assert path == tmp_path / HISTORY_FOLDER / f"{'ab' * 8}.jsonl"
    for link in links[:2]:  # each in a process of its own
        board = StatusBoard(seat.peer, VirtualClock(), 0.0)
        board.takes_part_in("our run", 1_000_000, is_outbound_only=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_history, path, board, status())
            await trio.sleep(2.5 * WRITE_EVERY_S)
            board.publish(RoundCommitted(link))
            await trio.sleep(0)
            nursery.cancel_scope.cancel()
        assert board.rounds.given.fresh == []
        await recall_history(path, board)
        given, seen = board.rounds.given, read_history(path).rounds
        assert (given.rounds, given.tokens) == (link.index, sum(each.own_tokens for each in seen))
    (found,) = read_histories(tmp_path)
    assert found.run == "our run"
    assert [(seen.index, seen.total_tokens, seen.loss_nats) for seen in found.rounds] == [
        (link.index, link.total_tokens, 1.25) for link in links[:2]
    ]
    record = links[0].record
    assert record is not None
    entry = record.contributor(seat.peer)
    assert found.rounds[0].own_tokens == (entry.credited_tokens if entry else 0)
    assert found.rounds[0].num_members == len(record.contributors)
    assert [each.seconds for each in found.trained] == [pytest.approx(2 * WRITE_EVERY_S)] * 2


async def test_time_in_which_the_owner_or_the_host_holds_training_back_is_not_counted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "log.jsonl"
    for read in (status("paused"), status("waiting"), status("training", "held")):
        with trio.move_on_after(10 * WRITE_EVERY_S):
            await keep_history(path, StatusBoard(Table(3).live()[0].peer, VirtualClock(), 0.0), read)
    assert not path.exists()


def test_of_rounds_on_two_lineages_the_followed_one_stands(tmp_path: Path) -> None:
    file = RoundLog(tmp_path / "log.jsonl", "run")
    file.write([line(1), line(2), line(3, own=7)])
    file.write([line(2, own=0, unix_s=2_000), line(3, own=9, unix_s=2_000)])
    found = read_history(tmp_path / "log.jsonl")
    assert [(seen.index, seen.own_tokens) for seen in found.rounds] == [(1, 5), (2, 0), (3, 9)]


def test_a_half_line_and_nonsense_cost_only_themselves(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    RoundLog(path, "run").write([line(1)])
    with path.open("ab") as file:
        file.write(b'{"t": 5, "i": 2, "al')
    RoundLog(path, "run").write([line(2), {"t": 9, "trained": 60.0}])
    with path.open("ab") as file:
        file.write(
            b'\xff\xfe\n[1]\n{"t": 1, "i": -4, "all": 1, "n": 1, "own": 1}\n{"i": true}\n' + b"9" * 10_000 + b"\n"
        )
    found = read_history(path)
    assert (found.run, [seen.index for seen in found.rounds]) == ("run", [1, 2])
    assert [each.seconds for each in found.trained] == [60.0]
    assert json.loads(path.read_bytes().splitlines()[0]) == {"run": "run"}


def test_a_disk_that_refuses_costs_lines_and_one_warning(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    file = RoundLog(tmp_path / "in the way" / "log.jsonl", "run")
    with capture_logs() as logs:
        file.write([line(1)])
        file.write([line(2)])
    assert [entry["event"] for entry in logs] == ["history_not_written"]


def test_the_run_that_was_seen_last_comes_last(tmp_path: Path) -> None:
    RoundLog(tmp_path / HISTORY_FOLDER / f"{'a' * 16}.jsonl", "new").write([line(1, unix_s=9_000)])
    RoundLog(tmp_path / HISTORY_FOLDER / f"{'b' * 16}.jsonl", "old").write([line(1)])
    RoundLog(tmp_path / HISTORY_FOLDER / f"{'c' * 16}.jsonl", "none").write([])
    assert [found.run for found in read_histories(tmp_path)] == ["old", "new"]


async def test_rounds_of_a_lineage_that_is_switched_to_are_among_them(autojump_clock: trio.testing.MockClock) -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 2 for seat in table.live()))
    seat = table.live()[0]
    path = seat.state.tree.path(seat.state.tree.root, seat.head.commit)
    assert path is not None
    board = StatusBoard(seat.peer, VirtualClock(), 0.0)
    board.publish(LineageSwitched(path, ()))
    assert [seen.index for seen in board.rounds.given.fresh] == [node.link.index for node in path]
