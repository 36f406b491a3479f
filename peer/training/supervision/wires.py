"""Prepares the way between the cards of one replica, before torch opens it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import torch

from peer.training.ranks.rank_group import RankGroup
from peer.training.supervision.wires_core import wire_settings

SHARED_MEMORY: Final = Path("/dev/shm")


def prepare_wires(group: RankGroup, device: torch.device) -> str:
    """Set NCCL's variables for these ranks, where their owner did not. All ranks call this together. Returns why a slower way is
    taken, in one line; empty for the best way, and for other devices than CUDA cards.

    Raises:
        RankGone: a process ended.
    """
    if device.type != "cuda":
        return ""
    others = group.share(b",".join(group.gather(str(device.index or 0).encode()))).decode().split(",")
    settings = wire_settings(
        shared_bytes(), has_peer_access=group.all(_reaches(device, [int(each) for each in others]))
    )
    for name, value in settings.environment.items():
        os.environ.setdefault(name, value)
    return settings.note


def _reaches(device: torch.device, others: list[int]) -> bool:
    own = device.index or 0
    return all(torch.cuda.can_device_access_peer(own, each) for each in others if each != own)


def shared_bytes() -> int:
    """The size of /dev/shm, 0 where there is none."""
    try:
        return shutil.disk_usage(SHARED_MEMORY).total
    except OSError:
        return 0
