from __future__ import annotations

from collections import defaultdict

import pytest

from peer.training.plan.layout import Mesh
from peer.training.ranks.text_share import ALL_TEXT, share_of

STARTS = (40, 10, 70, 30, 20, 60)


def test_one_process_reads_all_windows_in_order() -> None:
    parts = ALL_TEXT.parts(STARTS, 4)
    assert [(part.starts, part.weight) for part in parts] == [((40, 10, 70, 30), 4 / 6), ((20, 60), 2 / 6)]
    assert ALL_TEXT.is_all


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(shard=2),
        Mesh(shard=4),
        Mesh(shard=2, tensor=2),
        Mesh(shard=4, context=2),
        Mesh(shard=2, context=2),
        Mesh(shard=9),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_take_as_many_passes_and_every_window_counts_the_same(mesh: Mesh, size: int) -> None:
    weights: dict[int, float] = defaultdict(float)
    passes = set()
    for rank in range(mesh.num_ranks):
        share = share_of(mesh, rank)
        parts = share.parts(STARTS, size)
        passes.add(len(parts))
        assert all(part.starts for part in parts)
        for part in parts:
            for start in part.starts:
                weights[start] += part.weight / len(part.starts) / mesh.tensor
    assert len(passes) == 1
    assert weights == {start: pytest.approx(1 / len(STARTS)) for start in STARTS}


def test_ranks_that_share_a_sequence_or_its_layers_read_the_same() -> None:
    mesh = Mesh(shard=4, context=2, tensor=2)
    assert [share_of(mesh, rank).reader for rank in range(mesh.num_ranks)] == [0, 0, 0, 0, 1, 1, 1, 1]
