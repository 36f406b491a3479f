"""Features of a document as integers: counts of short byte runs at its beginning, or a model's embeddings of the tokens there.

Both are sums of integers, so they are identical for all processes, threads and instruction sets. Embeddings are stored in the
router's file, rounded once on the host; peers do not have the weights that they were taken from.

Shapes: V tokens, D values of a model's embedding, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from averaging.data.tokenizer import Tokenizer
from protocol.errors import ConfigError, LocalProtocolError
from protocol.run.experts_section import MAX_EMBEDDING_FEATURES

PREFIX_BYTES: Final = 4096
"""Bytes of a document that are used. They are enough to recognise a language, and a peer has them before the rest."""

GRAM_BYTES: Final = 4
NUM_GRAM_FEATURES: Final = 4096
_FEATURE_BITS: Final = 12
_MULTIPLIER: Final = np.uint32(2654435761)
"""Knuth's multiplier, 2^32 over the golden ratio: it maps neighbouring byte runs far apart (TAOCP 3, section 6.4)."""

_LARGEST: Final = 127
_STANDARD_DEVIATIONS: Final = 4.0
"""Range of an embedding's values that int8 covers. Values outside are clipped."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def text_prefix(text: bytes) -> bytes:
    """The part of a document that is used.

    Raises:
        ConfigError: an empty document, or bytes that are not UTF-8 (a character cut by the end of the prefix is allowed).
    """
    prefix = text[:PREFIX_BYTES]
    if not prefix.strip():
        raise ConfigError("a document that is empty", "some text", "leave it out of the data set")
    if len(prefix.decode("utf8", "ignore").encode()) < len(prefix) - 3:
        raise ConfigError("a document that is no text", "UTF-8", "leave it out of the data set")
    return prefix


def gram_features(text: bytes) -> Integers:
    """(F,) integers. Each is the root of 256 times the number of the prefix's byte runs with that hash.

    Raises:
        ConfigError: as `text_prefix`.
    """
    prefix = text_prefix(text)
    padded = np.frombuffer(prefix.ljust(GRAM_BYTES, b"\0"), dtype=np.uint8).astype(np.uint32)
    runs = len(padded) - GRAM_BYTES + 1
    grams = sum((padded[place : place + runs] << np.uint32(8 * place) for place in range(GRAM_BYTES)), np.uint32(0))
    places = (grams * _MULTIPLIER) >> np.uint32(32 - _FEATURE_BITS)
    return _roots(np.bincount(places.astype(np.int64), minlength=NUM_GRAM_FEATURES))


def _roots(counts: npt.NDArray[np.int64]) -> Integers:
    """A root is one correctly rounded operation everywhere. It keeps a repeated text, such as a licence at the start, from
    dominating.
    """
    roots: Integers = np.sqrt(256.0 * counts).astype(np.int64)
    return roots


@dataclass(frozen=True)
class Embeddings:
    """A model's embeddings, centred and rounded.

    Attributes:
        table_VF: (V, F) int8.
        origin: the model they are from: "seed 1" of the run's first values, "round 12" of its trunk's.
        tokenizer: the run's; None if a file is only checked.
    """

    table_VF: npt.NDArray[np.int8]
    origin: str
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.tokenizer.vocab_size > len(self.table_VF):
            raise ConfigError(
                f"a router with embeddings of {len(self.table_VF)} tokens",
                f"at least {self.tokenizer.vocab_size}, which the run's tokenizer has",
            )

    @property
    def num_features(self) -> int:
        """F."""
        return int(self.table_VF.shape[1])

    def features(self, text: bytes) -> Integers:
        """(F,) integers: the sum of the embeddings of the prefix's tokens, each times the root of 256 times its count.

        Raises:
            ConfigError: as `text_prefix`.
            LocalProtocolError: there is no tokenizer.
        """
        if self.tokenizer is None:
            raise LocalProtocolError("a router of embeddings that is asked without a tokenizer", "the run's tokenizer")
        tokens, counts = _counted(text, self.tokenizer)
        # integers below 2^31 in int64: a sum in any order is the same
        features_F: Integers = _roots(counts) @ self.table_VF[tokens].astype(np.int64)
        return features_F


def _counted(text: bytes, tokenizer: Tokenizer) -> tuple[Integers, Integers]:
    """The prefix's distinct tokens, and how often each occurs."""
    # whole characters only: tokenizers differ on half of one
    whole = text_prefix(text).decode("utf8", "ignore").encode()
    tokens, counts = np.unique(tokenizer.encode(whole).astype(np.int64), return_counts=True)
    return tokens, counts.astype(np.int64)


def fit_embeddings(weights_VD: Floats, origin: str, documents: Sequence[bytes], tokenizer: Tokenizer) -> Embeddings:
    """Embeddings for document features, from a model's embeddings: centred on the mean of these documents, as int8. Run by the
    host only.

    If a model has more than `MAX_EMBEDDING_FEATURES` values per token, that many sums of them with random signs are taken.
    Lengths and angles stay about the same (Johnson and Lindenstrauss 1984; signs: Achlioptas 2003).

    Raises:
        ConfigError: values that are not finite, or no values; a document that is empty or not text.
    """
    values_VF = np.asarray(weights_VD, dtype=np.float64)
    if values_VF.ndim != 2 or not values_VF.size or not np.isfinite(values_VF).all():
        raise ConfigError(f"embeddings of {origin} that are not all finite", "a finite value each")
    if values_VF.shape[1] > MAX_EMBEDDING_FEATURES:
        signs_DF = np.random.default_rng(0).choice((-1.0, 1.0), (values_VF.shape[1], MAX_EMBEDDING_FEATURES))
        values_VF = values_VF @ signs_DF / np.sqrt(MAX_EMBEDDING_FEATURES)
    weights_V = np.zeros(len(values_VF))
    for text in documents:
        tokens, counts = _counted(text, tokenizer)
        weights_V[tokens] += _roots(counts)
    centred_VF = values_VF - weights_V @ values_VF / weights_V.sum()
    spread = float(np.sqrt((weights_V @ (centred_VF * centred_VF)).sum() / (weights_V.sum() * centred_VF.shape[1])))
    if not spread:
        raise ConfigError(f"embeddings of {origin} that are all the same", "values that tell tokens apart")
    scaled_VF = np.rint(centred_VF * (_LARGEST / (_STANDARD_DEVIATIONS * spread)))
    table_VF = np.clip(scaled_VF, -_LARGEST, _LARGEST).astype(np.int8)
    return Embeddings(table_VF, origin, tokenizer)
