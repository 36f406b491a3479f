"""Which expert a document belongs to: the same answer in every process on every machine.

The features of a document are counts of short byte runs at its beginning, hashed into a few thousand buckets, or the embeddings
of its tokens there (document_features.py). Experts are directions in that space. The host finds them by balanced k-means (as
DiPaCo, 2403.10616, routes by a prefix) and stores them as integers. Documents are compared with them in integer arithmetic, so
that threads and instruction sets do not change an answer. Prices keep experts from getting more than their share. If a second
expert is almost as near to a document, both train on it.

Shapes: D documents, F features, X experts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt

from averaging.data.packing.document_features import (
    NUM_GRAM_FEATURES,
    PREFIX_BYTES,
    Embeddings,
    Integers,
    gram_features,
)
from averaging.data.tokenizer import Tokenizer
from protocol.errors import ConfigError
from protocol.ids import Root
from protocol.run.experts_section import MAX_EMBEDDING_FEATURES, RouterFeatures
from protocol.tensors.expert_schema import MAX_EXPERTS

CENTROID_LENGTH: Final = 8192
"""Length of an expert's direction. As int16 it is exact to a part in thousands."""

PRICE_UNIT: Final = 16
"""Parts of a centroid's length, times the document's own length, in which prices are given."""

NO_SECOND: Final = -1
"""Value of `DocumentRouter.second_within` with which every document has one expert."""

_ROUNDS: Final = 20
_PRICE_STEPS: Final = 60
_MAGIC: Final = "potluck router 1"
_MOST_TOKENS: Final = 1 << 20
_MOST_ORIGIN: Final = 64

Directions = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DocumentRouter:
    """Experts as directions in the space of document features.

    Attributes:
        centroids_XF: (X, F) int16, each about CENTROID_LENGTH long.
        prices_X: (X,) int64, subtracted from an expert's score, in PRICE_UNIT parts of a centroid's length.
        second_within: a document's second expert also trains on it if it is at most this much farther, in the same unit.
        embeddings: used for the features of documents; None for byte runs.
    """

    centroids_XF: npt.NDArray[np.int16]
    prices_X: Integers
    second_within: int = NO_SECOND
    embeddings: Embeddings | None = None

    @property
    def num_experts(self) -> int:
        """X."""
        return len(self.centroids_XF)

    def nearest(self, text: bytes, count: int = 1) -> tuple[int, ...]:
        """A document's nearest experts, nearest first; the lower number first if two are equally near.

        Raises:
            ConfigError: a document that is empty or not text, or more experts than there are.
        """
        if not 1 <= count <= self.num_experts:
            raise ConfigError(f"{count} experts of a document", f"1 to {self.num_experts}")
        order_X, _ = self._ranked(text)
        return tuple(int(expert) for expert in order_X[:count])

    def choices(self, text: bytes) -> tuple[int, ...]:
        """The experts that train on a document: the nearest, and the second if it is almost as near (the overlap of DiPaCo,
        2403.10616, section 2.4). Raises ConfigError as `nearest`.
        """
        return self.chosen(text)[0]

    def chosen(self, text: bytes) -> tuple[tuple[int, ...], Integers]:
        """`choices`, and (X,) integers: how much farther than the nearest each expert is, in PRICE_UNIT parts of a centroid's
        length. Raises ConfigError as `nearest`.
        """
        order_X, farther_X = self._ranked(text)
        near = [int(expert) for expert in order_X[:2]]
        return tuple(near[:1] + [expert for expert in near[1:] if farther_X[expert] <= self.second_within]), farther_X

    def _ranked(self, text: bytes) -> tuple[Integers, Integers]:
        """(X,) experts, nearest first, and (X,), by expert number, how much farther they are."""
        features_F = _features(text, self.embeddings)
        length = max(1, math.isqrt(int(features_F @ features_F)))
        scores_X: Integers = PRICE_UNIT * (self.centroids_XF.astype(np.int64) @ features_F) - self.prices_X * length
        return np.argsort(-scores_X, kind="stable"), (scores_X.max() - scores_X) // length

    def to_bytes(self) -> bytes:
        """A line of JSON, then the prices, `second_within`, the centroids, and any embeddings by rows; little-endian."""
        head, table = _head(self.num_experts, self.centroids_XF.shape[1]), b""
        if (known_by := self.embeddings) is not None:
            head = _head(self.num_experts, known_by.num_features, len(known_by.table_VF), known_by.origin)
            table = known_by.table_VF.tobytes()
        numbers = np.append(self.prices_X, self.second_within).astype("<i8").tobytes()
        centroids = self.centroids_XF.astype("<i2").tobytes()
        return b"".join((json.dumps(head, sort_keys=True).encode(), b"\n", numbers, centroids, table))

    @property
    def root(self) -> Root:
        """The hash of `to_bytes`, which a manifest names."""
        return router_root(self.to_bytes())


def router_root(data: bytes) -> Root:
    """The root of a router file."""
    return Root(sha256(b"potluck router" + data).digest())


def _head(num_experts: int, num_features: int, num_tokens: int = 0, origin: str = "") -> dict[str, object]:
    """The first line of a file; without tokens, of a file without embeddings."""
    head = {"kind": _MAGIC, "experts": num_experts, "features": num_features, "prefix": PREFIX_BYTES}
    return {**head, "tokens": num_tokens, "embeddings": origin} if num_tokens else head


def router_from_bytes(
    data: bytes,
    root: Root,
    num_experts: int,
    *,
    features: RouterFeatures = "grams",
    tokenizer: Tokenizer | None = None,
) -> DocumentRouter:
    """Parse a router file of a run whose manifest names this root, number of experts and features.

    Args:
        tokenizer: the run's, for a router of embeddings that will route documents; None if it is only checked.

    Raises:
        ConfigError: another file, or a file of another run.
    """
    if router_root(data) != root:
        raise ConfigError(
            f"a router with root {router_root(data).hex()[:16]}", f"{root.hex()[:16]}, as the manifest says"
        )
    line, _, values = data.partition(b"\n")
    num_tokens, num_features, expected = _expected(line, num_experts, features)
    num_first_bytes, num_table_bytes = 8 * (num_experts + 1), num_tokens * num_features
    num_centroid_bytes = 2 * num_experts * num_features
    if _parsed(line) != expected:
        raise ConfigError(f"a router file that begins {line[:120]!r}", json.dumps(expected, sort_keys=True))
    num_bytes = num_first_bytes + num_centroid_bytes + num_table_bytes
    if len(values) != num_bytes:
        found = f"a router file with {len(values)} bytes after its first line"
        raise ConfigError(found, f"{num_bytes} of {num_experts} experts", "copy it again, whole")
    numbers = np.frombuffer(values[:num_first_bytes], dtype="<i8").astype(np.int64)
    last = num_first_bytes + num_centroid_bytes
    centroids_XF = np.frombuffer(values[num_first_bytes:last], dtype="<i2").astype(np.int16)
    embeddings = None
    if num_tokens:
        table_VF = np.frombuffer(values[last:], dtype=np.int8).reshape(num_tokens, num_features)
        embeddings = Embeddings(table_VF, str(expected["embeddings"]), tokenizer)
    return DocumentRouter(centroids_XF.reshape(num_experts, num_features), numbers[:-1], int(numbers[-1]), embeddings)


def _parsed(line: bytes) -> dict[str, object]:
    try:
        head = json.loads(line)
    except ValueError:
        return {}
    return head if isinstance(head, dict) else {}


def _expected(line: bytes, num_experts: int, features: RouterFeatures) -> tuple[int, int, dict[str, object]]:
    """The number of tokens and features by a file's first line, as far as they are plausible, and the line expected. The file
    itself decides the sizes of an embedding and its origin.
    """
    if features == "grams":
        return 0, NUM_GRAM_FEATURES, _head(num_experts, NUM_GRAM_FEATURES)
    head = _parsed(line)
    num_tokens, num_features = (
        found if type(found := head.get(name)) is int and 1 <= found <= most else 1
        for name, most in (("tokens", _MOST_TOKENS), ("features", MAX_EMBEDDING_FEATURES))
    )
    origin = found if isinstance(found := head.get("embeddings"), str) and len(found) <= _MOST_ORIGIN else "seed 1"
    return num_tokens, num_features, _head(num_experts, num_features, num_tokens, origin)


def _features(text: bytes, embeddings: Embeddings | None) -> Integers:
    return gram_features(text) if embeddings is None else embeddings.features(text)


def fit_router(
    documents: Sequence[bytes],
    num_experts: int,
    seed: int = 0,
    overlap: float = 0.0,
    embeddings: Embeddings | None = None,
) -> DocumentRouter:
    """Fit experts as balanced clusters of these documents. Run by the host only; peers share the resulting file.

    Args:
        overlap: share of these documents on which two experts train: those nearest to a second expert.
        embeddings: used for the features of documents; None for byte runs.

    Raises:
        ConfigError: fewer documents than experts, or one that is empty or not text.
    """
    if not 1 <= num_experts <= min(MAX_EXPERTS, len(documents)):
        raise ConfigError(
            f"{num_experts} experts for {len(documents)} documents", f"1 to {min(MAX_EXPERTS, len(documents))} experts"
        )
    unit_DF = _units(np.stack([_features(text, embeddings) for text in documents]))
    random = np.random.default_rng(seed)
    centroids_XF = _spread_out(unit_DF, num_experts, random)
    for _ in range(_ROUNDS):
        prices_X = _balanced_prices(unit_DF @ centroids_XF.T)
        labels_D = np.argmax(unit_DF @ centroids_XF.T - prices_X, axis=1)
        centroids_XF = _means(unit_DF, labels_D, centroids_XF)
    router = _rounded(centroids_XF, _balanced_prices(unit_DF @ centroids_XF.T), embeddings)
    return _overlapping(router, documents, round(overlap * len(documents)))


def _overlapping(router: DocumentRouter, documents: Sequence[bytes], count: int) -> DocumentRouter:
    """The router with which this number of the documents has a second expert."""
    if router.num_experts < 2 or not count:
        return replace(router, second_within=NO_SECOND)
    seconds = sorted(int(np.sort(router.chosen(text)[1])[1]) for text in documents)
    return replace(router, second_within=seconds[count - 1])


def _units(values_DF: Integers) -> Directions:
    lengths_D = np.sqrt((values_DF * values_DF).sum(axis=1, dtype=np.float64))
    units_DF: Directions = values_DF / np.maximum(lengths_D, 1.0)[:, None]
    return units_DF


def _spread_out(unit_DF: Directions, num_experts: int, random: np.random.Generator) -> Directions:
    """Choose initial documents far from each other (k-means++, Arthur and Vassilvitskii 2007)."""
    chosen = [int(random.integers(len(unit_DF)))]
    while len(chosen) < num_experts:
        far_D = np.maximum(1.0 - (unit_DF @ unit_DF[chosen].T).max(axis=1), 0.0)
        far_D[chosen] = 0.0
        weights_D = far_D if far_D.sum() > 0 else np.isin(np.arange(len(unit_DF)), chosen, invert=True).astype(float)
        chosen.append(int(random.choice(len(unit_DF), p=weights_D / weights_D.sum())))
    return unit_DF[chosen]


def _balanced_prices(similar_DX: Directions) -> Directions:
    """Prices subtracted from the experts' similarities so that all get about the same number of documents. The price of an expert
    with too many is raised, in smaller and smaller steps.
    """
    num_documents, num_experts = similar_DX.shape
    prices_X = np.zeros(num_experts)
    spread = float(similar_DX.max() - similar_DX.min())
    for step in range(_PRICE_STEPS):
        counts_X = np.bincount(np.argmax(similar_DX - prices_X, axis=1), minlength=num_experts)
        prices_X += spread * (counts_X / num_documents - 1 / num_experts) / (1 + step)
    balanced_X: Directions = prices_X - prices_X.min()
    return balanced_X


def _means(unit_DF: Directions, labels_D: npt.NDArray[np.int64], before_XF: Directions) -> Directions:
    after_XF = before_XF.copy()
    for expert in range(len(before_XF)):
        own_DF = unit_DF[labels_D == expert]
        if len(own_DF):
            mean_F = own_DF.mean(axis=0)
            after_XF[expert] = mean_F / max(float(np.sqrt((mean_F * mean_F).sum())), 1e-12)
    return after_XF


def _rounded(centroids_XF: Directions, prices_X: Directions, embeddings: Embeddings | None) -> DocumentRouter:
    whole_XF = np.rint(CENTROID_LENGTH * centroids_XF).astype(np.int16)
    whole_X = np.rint(PRICE_UNIT * CENTROID_LENGTH * prices_X).astype(np.int64)
    return DocumentRouter(whole_XF, whole_X, embeddings=embeddings)
