"""fp16: little-endian float16, round half to even; values beyond +-65504 are clamped there."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from averaging.codecs.codec import FloatArray
from averaging.codecs.dense import PlainCodec
from protocol.kinds.codec_table import CODECS

FP16_MAX: Final = 65504.0


class Fp16Codec(PlainCodec):
    """2 bytes a value."""

    facts = CODECS["fp16"]
    compiled_as = 4

    def _written(self, values_n: torch.Tensor) -> bytes:
        return torch.clamp(values_n, -FP16_MAX, FP16_MAX).numpy().astype("<f2").tobytes()

    def _values(self, data: bytes | memoryview) -> FloatArray:
        return np.frombuffer(data, dtype="<f2").astype(np.float32)


KINDS = (Fp16Codec(),)
