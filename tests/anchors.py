"""Anchors as an evaluation reads them: copied into rooms that it gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.network.seams.interfaces import ReadAnchors


def reads(*anchors: torch.Tensor) -> ReadAnchors:
    """Gives these anchors, one for each unit."""

    async def read(rooms: Sequence[torch.Tensor]) -> None:
        for room_N, anchor_N in zip(rooms, anchors, strict=True):
            room_N.copy_(anchor_N)

    return read
