"""Documents as bytes, without shards."""

from __future__ import annotations

import numpy as np

from averaging.data.tokenizer import END, ByteTokens, encode_bytes


def encode_document(text: bytes) -> ByteTokens:
    """(len(text) + 1,) uint16: the bytes and the end mark."""
    return np.append(encode_bytes(text), np.uint16(END))
