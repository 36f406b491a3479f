"""fp32: little-endian float32, unchanged."""

from __future__ import annotations

import numpy as np
import torch

from averaging.codecs.codec import FloatArray
from averaging.codecs.dense import PlainCodec
from protocol.kinds.codec_table import CODECS


class Fp32Codec(PlainCodec):
    """4 bytes a value, bit for bit."""

    facts = CODECS["fp32"]
    compiled_as = 3

    def _written(self, values_n: torch.Tensor) -> bytes:
        return values_n.contiguous().numpy().astype("<f4", copy=False).tobytes()

    def _values(self, data: bytes | memoryview) -> FloatArray:
        return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=True)


KINDS = (Fp32Codec(),)
