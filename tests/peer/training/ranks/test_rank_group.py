"""Ranks find each other in a folder, speak in turn, and see when one of them ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peer.training.plan.layout import Mesh
from peer.training.ranks.rank_group import MOST_BYTES, ORDERS_NAME, RankGone, RankGroup, alone, meet


def _all(folder: Path, mesh: Mesh, work: Callable[[RankGroup], object]) -> list[object]:
    """The results of each rank's work, each in a thread of its own."""

    def one(rank: int) -> object:
        group = meet(mesh, rank, folder)
        try:
            return work(group)
        finally:
            group.close()

    with ThreadPoolExecutor(mesh.num_ranks) as threads:
        return [each.result(60.0) for each in [threads.submit(one, rank) for rank in range(mesh.num_ranks)]]


def _wait_for_ever(group: RankGroup) -> None:
    while True:
        group.wait()


def test_the_first_ranks_bytes_reach_everybody(short_path: Path) -> None:
    assert _all(short_path, Mesh(shard=3), lambda group: group.share(b"go" if group.is_first else b"")) == [b"go"] * 3


def test_everybodys_bytes_reach_the_first_rank_in_order(short_path: Path) -> None:
    found = _all(short_path, Mesh(shard=2, tensor=2), lambda group: group.gather(str(group.rank).encode()))
    assert found == [[b"0", b"1", b"2", b"3"], [], [], []]


@pytest.mark.parametrize("num_bytes", [0, 1, MOST_BYTES, 2 * MOST_BYTES + 5])
def test_bytes_of_any_length_pass_both_ways(short_path: Path, num_bytes: int) -> None:
    data = random.Random(1).randbytes(num_bytes)
    assert _all(short_path, Mesh(shard=3), lambda group: group.share_all(data if group.is_first else b"")) == [data] * 3
    (short_path / ORDERS_NAME).unlink()
    if num_bytes:
        found = _all(short_path, Mesh(shard=3), lambda group: group.gather_all(data[:-1] + bytes([group.rank])))
        assert found == [[data[:-1] + bytes([rank]) for rank in range(3)], [], []]


@pytest.mark.parametrize("said", [(True, True), (True, False), (False, True)])
def test_all_is_true_where_each_rank_says_so(short_path: Path, said: tuple[bool, bool]) -> None:
    assert _all(short_path, Mesh(shard=2), lambda group: group.all(said[group.rank])) == [all(said)] * 2


def test_the_largest_value_is_known_on_every_rank(short_path: Path) -> None:
    assert _all(short_path, Mesh(shard=3), lambda group: group.largest((0.1, 7.25, -2.0)[group.rank])) == [7.25] * 3


@pytest.mark.parametrize(("said", "is_same"), [((4, 4), True), ((4, -1), False), ((-1, 4), False)])
def test_a_value_is_the_same_where_each_rank_has_it(short_path: Path, said: tuple[int, int], is_same: bool) -> None:
    assert _all(short_path, Mesh(shard=2), lambda group: group.is_same(said[group.rank])) == [is_same] * 2


@pytest.mark.parametrize("ends", [0, 1, 2])
def test_the_end_of_any_rank_is_seen_by_those_that_wait_for_it(short_path: Path, ends: int) -> None:
    def work(group: RankGroup) -> str:
        group.wait()
        if group.rank == ends:
            return "ended"
        with pytest.raises(RankGone):
            _wait_for_ever(group)
        group.close()
        return "saw it"

    assert sorted(_all(short_path, Mesh(shard=3), work), key=str) == ["ended", "saw it", "saw it"]


def test_one_process_alone_agrees_with_itself() -> None:
    group = alone()
    assert (group.share(b"x"), group.gather(b"x"), group.all(True), group.largest(2.5)) == (b"x", [b"x"], True, 2.5)
    assert not group.all(False)
