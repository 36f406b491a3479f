"""int4: a code of four bits a value and a scale for each block."""

from __future__ import annotations

import numpy as np

from averaging.codecs.codec import FloatArray
from averaging.codecs.dense import FourBitCodec, pairs_of
from averaging.codecs.integer_codes import rounded
from protocol.kinds.codec_table import CODECS


class Int4Codec(FourBitCodec):
    """Blocks of 128 values: scale = absolute maximum / 7, then round half to even of value / scale in four bits, two's complement."""

    facts = CODECS["int4"]
    compiled_as = 1
    largest_code = 7.0
    _pairs = pairs_of([0, 1, 2, 3, 4, 5, 6, 7, np.nan, -7, -6, -5, -4, -3, -2, -1])

    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        return self._packed(rounded(relative).view(np.uint8), num_elements)


KINDS = (Int4Codec(),)
