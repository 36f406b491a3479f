"""Two honest lines on the loss plot: what zlib makes of the held-out text, and what a table of letter pairs would."""

from __future__ import annotations

import zlib

import numpy as np

from averaging.data.tokenizer import END, VOCAB_SIZE, Tokens


def zlib_bits_per_byte(heldout: Tokens) -> float:
    """Bits per byte of zlib at level 9 over the held-out text, end marks left out."""
    text = heldout[heldout != END].astype(np.uint8).tobytes()
    return 8.0 * len(zlib.compress(text, 9)) / max(1, len(text))


def pairs_nats_per_token(train: Tokens, heldout: Tokens) -> float:
    """Cross-entropy in nats per token of a table P(next | token) counted on the training part with add-one smoothing."""
    codes = train[:-1].astype(np.int64) * VOCAB_SIZE + train[1:]
    counts = np.bincount(codes, minlength=VOCAB_SIZE * VOCAB_SIZE).reshape(VOCAB_SIZE, VOCAB_SIZE) + 1.0
    log_p = np.log(counts) - np.log(counts.sum(axis=1, keepdims=True))
    return float(-log_p[heldout[:-1], heldout[1:]].mean())
