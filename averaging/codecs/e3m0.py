"""e3m0: a sign and a power of two in four bits a value, and a scale for each block."""

from __future__ import annotations

from typing import Final

import numpy as np

from averaging.codecs.codec import MAGNITUDE, FloatArray
from averaging.codecs.dense import FourBitCodec, pairs_of
from protocol.kinds.codec_table import CODECS

_CARRY_FROM_SQRT_2: Final = np.uint32((1 << 23) - 0x3504F3)
"""sqrt(2) in float32 is 0x3FB504F3: a mantissa of 0x3504F3."""

_POWERS: Final = (0.0, *(2.0 ** (level - 7) for level in range(1, 8)))


class E3m0Codec(FourBitCodec):
    """Blocks of 256 values: scale = absolute maximum, then a sign and a level of three bits: +-2^(level - 7), or zero at level 0.

    Streaming DiLoCo (arXiv:2501.18512) sends outer gradients this way. The nearest level is taken in the log domain: between two
    powers of two the border is at sqrt(2) times the smaller one, and values below 2^-6.5 become zero.
    """

    facts = CODECS["e3m0"]
    compiled_as = 2
    largest_code = 1.0
    _pairs = pairs_of([sign * power for sign in (1.0, -1.0) for power in _POWERS])

    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        bits = relative.view(np.uint32)
        # Adding this carries into the exponent exactly if the mantissa is that of sqrt(2) or more.
        levels = ((bits & MAGNITUDE) + _CARRY_FROM_SQRT_2 >> 23).astype(np.int16) - (127 - 7)
        codes = np.maximum(levels, 0).astype(np.uint8)
        codes |= np.where(codes > 0, bits >> 28 & 8, 0).astype(np.uint8)
        return self._packed(codes, num_elements)


KINDS = (E3m0Codec(),)
