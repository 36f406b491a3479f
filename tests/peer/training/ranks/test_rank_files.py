from __future__ import annotations

from pathlib import Path

from peer.training.plan.layout import Mesh
from peer.training.ranks.rank_files import moments_path, part_of_rank
from peer.training.ranks.rank_group import RankGroup, alone

KEPT = Path("state") / "moments.safetensors"


def test_each_rank_keeps_its_moments_in_a_file_of_its_own() -> None:
    assert moments_path(KEPT, alone()) == KEPT
    assert moments_path(KEPT, RankGroup(Mesh(shard=2), 1)).name == "moments-1-of-2.safetensors"


def test_moments_of_another_layout_are_told_apart() -> None:
    groups = [alone(), *(RankGroup(mesh, 1) for mesh in (Mesh(shard=4), Mesh(shard=2, tensor=2), Mesh(tensor=4)))]
    assert len({part_of_rank(group) for group in groups}) == len(groups)
