from __future__ import annotations

import pytest
import torch

from peer.training.plan.boxes import box_of, spans_in
from peer.training.plan.layout import Mesh


@pytest.mark.parametrize("shape", [(257, 6), (5,), (1,), (8, 4), (3, 4, 2)])
@pytest.mark.parametrize("mesh", [Mesh(shard=2), Mesh(shard=4), Mesh(shard=2, tensor=2), Mesh(shard=3, context=3)])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_the_boxes_of_all_ranks_cover_each_value_once_or_once_a_copy(
    shape: tuple[int, ...], mesh: Mesh, dim: int | None
) -> None:
    dim = dim if dim is not None and dim < len(shape) else None
    covered = torch.zeros(shape)
    for rank in range(mesh.num_ranks):
        box = box_of(shape, mesh, rank, dim)
        covered[box.slices] += 1
        assert covered[box.slices].numel() == box.num_elements
    copies = mesh.tensor if dim is None else 1
    assert bool((covered == copies).all())


@pytest.mark.parametrize("mesh", [Mesh(shard=2), Mesh(shard=4), Mesh(shard=5)])
def test_rows_are_split_as_torch_splits_them(mesh: Mesh) -> None:
    whole = torch.arange(7 * 3).view(7, 3)
    chunks = [*torch.chunk(whole, mesh.shard), *[whole[:0]] * mesh.shard][: mesh.shard]
    for rank, chunk in enumerate(chunks):
        assert torch.equal(whole[box_of((7, 3), mesh, rank).slices], chunk)


@pytest.mark.parametrize("shape", [(7, 6), (9,), (5, 4, 2)])
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("span", [(0, 9), (1, 2), (3, 9), (6, 8), (2, 5), (4, 4), (0, 6)])
def test_the_values_of_a_span_that_lie_in_a_box_are_found(
    shape: tuple[int, ...], dim: int | None, span: tuple[int, int]
) -> None:
    mesh, size = Mesh(shard=2, tensor=2), torch.Size(shape).numel()
    begin, stop = span[0] * size // 9, span[1] * size // 9
    dim = dim if dim is not None and dim < len(shape) else None
    marked = torch.zeros(size)
    marked[begin:stop] = 1
    for rank in range(mesh.num_ranks):
        box = box_of(shape, mesh, rank, dim)
        own = torch.zeros(box.shape)
        if own.numel():
            for top, bottom, left, right in spans_in(box, shape, begin, stop):
                own.view(box.shape[0], -1)[top:bottom, left:right] += 1
        assert torch.equal(own, marked.view(shape)[box.slices]), (rank, box)
