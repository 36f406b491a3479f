"""Gathers the parts of a tensor from all ranks on the first, and gives them out again. Whole tensors lie in the machine's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from peer.training.plan.boxes import Box


def on_first(own: torch.Tensor, boxes: Sequence[Box], shape: Sequence[int]) -> torch.Tensor | None:
    """The whole tensor on the first rank; None on the others. All ranks call it together.

    Args:
        own: this rank's part.
        boxes: the part of each rank. Some may be empty, and several ranks may have the same part.
        shape: of the whole tensor.
    """
    part = own.detach().to("cpu").contiguous()
    if dist.get_rank():
        if part.numel():
            dist.send(part, 0)
        return None
    whole = part.new_empty(tuple(shape))
    whole[boxes[0].slices] = part
    for rank, box in enumerate(boxes):
        if rank and box.num_elements:
            came = part.new_empty(box.shape)
            dist.recv(came, rank)
            whole[box.slices] = came
    return whole


def from_first(whole: torch.Tensor | None, boxes: Sequence[Box], dtype: torch.dtype) -> torch.Tensor:
    """This rank's part of a tensor that the first rank has whole, in the machine's memory. All ranks call it together.

    Args:
        whole: None on the other ranks.
        boxes: as of `on_first`.
        dtype: of the whole tensor.
    """
    rank = dist.get_rank()
    if whole is None:
        own = torch.empty(boxes[rank].shape, dtype=dtype)
        if own.numel():
            dist.recv(own, 0)
        return own
    for other, box in enumerate(boxes):
        if other and box.num_elements:
            dist.send(whole[box.slices].contiguous(), other)
    return whole[boxes[0].slices]
