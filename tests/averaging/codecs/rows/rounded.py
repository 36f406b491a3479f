"""Values as the other side of a boundary decodes them."""

from __future__ import annotations

import torch

from averaging.codecs.rows.boundary import Boundary, BoundaryCodec, decode_boundary, encode_boundary
from protocol.ids import RunId
from protocol.pipeline.micro_batch import MicroBatch

_BATCH = MicroBatch(RunId(bytes(32)), lane=1, step=1, number=0, weights=1)


def quantised(values_BTD: torch.Tensor, codec: BoundaryCodec) -> torch.Tensor:
    """The values as the other side decodes them, in their own dtype, for computing all stages in one place."""
    boundary = Boundary(codec, "forward", 1, _BATCH, (values_BTD.shape[0], values_BTD.shape[1], values_BTD.shape[2]))
    return decode_boundary(encode_boundary(values_BTD, boundary), boundary).to(values_BTD)
