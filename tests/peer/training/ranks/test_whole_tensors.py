"""Whole tensors come together on the first rank and go back, however uneven the ranks' parts are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from peer.training.plan.boxes import box_of
from peer.training.plan.layout import Mesh
from peer.training.ranks.process_group import join_process_group
from peer.training.ranks.rank_group import meet
from peer.training.ranks.whole_tensors import from_first, on_first
from tests.peer.training.ranks.rank_processes import run_ranks

UNEVEN = Mesh(shard=3)
SHAPES = ((4, 3), (7,), (1, 2, 2))


def there_and_back(mesh: Mesh, rank: int, folder: Path) -> Mapping[str, torch.Tensor]:
    """The tensors of one rank: of four rows over three ranks the last one has none."""
    join_process_group(meet(mesh, rank, folder / "meeting"), torch.device("cpu"), folder / "meeting")
    found = {}
    for place, shape in enumerate(SHAPES):
        boxes = [box_of(shape, mesh, each) for each in range(mesh.num_ranks)]
        whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
        own = from_first(None if rank else whole, boxes, torch.float32)
        assert torch.equal(own, whole[boxes[rank].slices])
        together = on_first(own, boxes, shape)
        assert (together is None) == bool(rank)
        found[f"{place}"] = own if together is None else together
    return found


def test_every_rank_gets_its_rows_and_the_first_one_has_all_of_them_again(short_path: Path) -> None:
    first, *others = run_ranks(UNEVEN, there_and_back, short_path)
    for place, shape in enumerate(SHAPES):
        assert first[f"{place}"].flatten().tolist() == list(range(torch.Size(shape).numel()))
    assert others[-1]["0"].shape == (0, 3)
