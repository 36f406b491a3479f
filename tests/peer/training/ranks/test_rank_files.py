from __future__ import annotations

from pathlib import Path

from peer.training.plan.layout import Mesh
from peer.training.ranks.rank_files import moments_path
from peer.training.ranks.rank_group import RankGroup, alone

KEPT = Path("state") / "moments.safetensors"


def test_each_rank_keeps_its_moments_in_a_file_of_its_own() -> None:
    assert moments_path(KEPT, alone()) == KEPT
    assert moments_path(KEPT, RankGroup(Mesh(shard=2), 1)).name == "moments-1-of-2.safetensors"
