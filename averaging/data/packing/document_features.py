"""What a document looks like, in whole numbers: how often short runs of bytes occur at its beginning, or what a model's embeddings say
of the tokens there.

Both are sums of integers, so neither processes nor threads nor instruction sets change a digit. Embeddings lie in the router's own
file, rounded once on the host: what they were taken from is nobody's to have.

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
"""Of a document that are looked at: enough to tell a language, and a peer has them before it has the rest."""

GRAM_BYTES: Final = 4
NUM_GRAM_FEATURES: Final = 4096
_FEATURE_BITS: Final = 12
_MULTIPLIER: Final = np.uint32(2654435761)
"""Knuth's, the golden ratio of 2^32: neighbouring runs of bytes come to lie far apart (TAOCP 3, section 6.4)."""

_LARGEST: Final = 127
_STANDARD_DEVIATIONS: Final = 4.0
"""Of the values of an embedding that int8 has room for; what lies farther out is cut."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def text_prefix(text: bytes) -> bytes:
    """As much of a document as is looked at.

    Raises:
        ConfigError: a document that is empty, or no text (bytes that are not UTF-8 but for a letter that the prefix cut).
    """
    prefix = text[:PREFIX_BYTES]
    if not prefix.strip():
        raise ConfigError("a document that is empty", "some text", "leave it out of the data set")
    if len(prefix.decode("utf8", "ignore").encode()) < len(prefix) - 3:
        raise ConfigError("a document that is no text", "UTF-8", "leave it out of the data set")
    return prefix


def gram_features(text: bytes) -> Integers:
    """(F,) whole numbers: of each place the root of 256 times how many of the prefix's runs of bytes fall there.

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
    """A root is one correctly rounded operation everywhere; it keeps a licence at the head of a file from being all that is seen."""
    roots: Integers = np.sqrt(256.0 * counts).astype(np.int64)
    return roots


@dataclass(frozen=True)
class Embeddings:
    """A model's embeddings, centred and rounded.

    Attributes:
        table_VF: (V, F) int8.
        origin: whose they are: "seed 1" of the run's first values, "round 12" of its trunk's.
        tokenizer: the run's; None where a file is only checked.
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
        """(F,) whole numbers: the embeddings of the prefix's tokens, each by the root of 256 times how often it occurs, added up.

        Raises:
            ConfigError: as `text_prefix`.
            LocalProtocolError: there is no tokenizer.
        """
        if self.tokenizer is None:
            raise LocalProtocolError("a router of embeddings that is asked without a tokenizer", "the run's tokenizer")
        tokens, counts = _counted(text, self.tokenizer)
        # whole numbers below 2^31 in int64: a sum in any order is the same
        features_F: Integers = _roots(counts) @ self.table_VF[tokens].astype(np.int64)
        return features_F


def _counted(text: bytes, tokenizer: Tokenizer) -> tuple[Integers, Integers]:
    """The prefix's tokens, each once, and how often each occurs."""
    # whole letters alone: what becomes of half of one is the tokenizer's own affair
    whole = text_prefix(text).decode("utf8", "ignore").encode()
    tokens, counts = np.unique(tokenizer.encode(whole).astype(np.int64), return_counts=True)
    return tokens, counts.astype(np.int64)


def fit_embeddings(weights_VD: Floats, origin: str, documents: Sequence[bytes], tokenizer: Tokenizer) -> Embeddings:
    """Embeddings as documents are known by, of a model's: less what is common to these documents, as int8. On the host alone.

    Where a model has more than `MAX_EMBEDDING_FEATURES` values a token, as many sums of them with random signs are taken: lengths and
    angles stay about what they were (Johnson and Lindenstrauss 1984; signs: Achlioptas 2003).

    Raises:
        ConfigError: values that are not finite, or none at all; a document that is empty or no text.
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
