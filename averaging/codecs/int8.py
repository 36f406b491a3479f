"""int8: a code of eight bits a value and a scale for each block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from averaging.codecs.codec import FloatArray
from averaging.codecs.dense import BlockCodec
from averaging.codecs.integer_codes import rounded
from protocol.errors import RemoteProtocolError
from protocol.kinds.codec_table import CODECS


class Int8Codec(BlockCodec):
    """Blocks of 256 values: scale = absolute maximum / 127, then round half to even of value / scale in int8."""

    facts = CODECS["int8"]
    compiled_as = 0
    largest_code = 127.0
    _is_bounded = True

    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        return rounded(relative).tobytes()[:num_elements]

    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        signed = codes.view(np.int8)
        if signed.min(initial=0) < -self.largest_code:
            raise RemoteProtocolError(f"{self.name} with a code that no encoder writes", "-127 to 127")
        return signed.astype(np.float32)


KINDS = (Int8Codec(),)
