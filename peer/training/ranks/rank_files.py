"""The files that each rank keeps for itself. Pure."""

from __future__ import annotations

from pathlib import Path

from peer.training.ranks.rank_group import RankGroup


def moments_path(path: Path, group: RankGroup) -> Path:
    """The file of this rank's moments: `moments-0-of-2.safetensors` beside the one of a process alone."""
    if group.size == 1:
        return path
    return path.with_name(f"{path.stem}-{group.rank}-of-{group.size}{path.suffix}")
