"""Attention over the keys and values of all ranks that share the sequences, for long contexts on cards: keys and values go around
the ranks (2310.01889), so that none holds those of a whole sequence. Torch's own ring; it has no kernels for processors.
"""

from __future__ import annotations

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional


class RingAttention:
    """The `Attention` of one rank, over the chunks that `token_spans` gives it: they are the ring's own balance.

    From its making on, every attention of this process is one of the ring.
    """

    def __init__(self, group: distributed.ProcessGroup) -> None:
        mesh = DeviceMesh.from_group(group, "cuda")
        # torch cuts some buffer at least; this one is never used
        unused = torch.zeros(2 * distributed.get_world_size(group), device="cuda")
        self._ring = context_parallel(mesh, buffers=[unused], buffer_seq_dims=[0])
        self._ring.__enter__()  # until the process ends: backward passes need it too

    def __call__(self, q_BHtE: torch.Tensor, k_BKtE: torch.Tensor, v_BKtE: torch.Tensor) -> torch.Tensor:
        """(B, H, t, E). All ranks of the group must come here together, and again in the backward pass."""
        repeats = q_BHtE.shape[1] // k_BKtE.shape[1]  # the ring takes as many key-value heads as heads
        k_BHtE, v_BHtE = (each.repeat_interleave(repeats, dim=1) for each in (k_BKtE, v_BKtE))
        return functional.scaled_dot_product_attention(q_BHtE, k_BHtE, v_BHtE, is_causal=True)
