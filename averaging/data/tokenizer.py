"""The byte tokenizer: token = byte, and one end mark between documents. Nothing to train, nothing to download."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

VOCAB_SIZE: Final = 257
END: Final = 256
"""Stands after each document."""

Tokens = npt.NDArray[np.uint16]


def encode_document(text: bytes) -> Tokens:
    """(len(text) + 1,) uint16: the bytes and the end mark."""
    tokens = np.empty(len(text) + 1, dtype=np.uint16)
    tokens[:-1] = np.frombuffer(text, dtype=np.uint8)
    tokens[-1] = END
    return tokens


def decode_tokens(tokens: Tokens) -> str:
    """The text; end marks become line breaks, broken UTF-8 becomes the replacement sign."""
    data = bytes(int(token) if token < 256 else 10 for token in tokens)
    return data.decode("utf-8", errors="replace")
