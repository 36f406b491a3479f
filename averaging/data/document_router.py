"""Which expert a document belongs to: the same answer in every process on every machine.

A document is known by how often short runs of bytes occur at its beginning, hashed into a few thousand places. Experts are directions
in that space, found by balanced k-means on the host (as DiPaCo, 2403.10616, routes by a prefix), and kept as whole
numbers: a document is compared with them in integers alone, so neither threads nor instruction sets change an answer. Prices keep
experts from taking more than their share. A document that a second expert is about as near to is trained on by both.

Shapes: D documents, F features, X experts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.errors import ConfigError
from protocol.expert_schema import MAX_EXPERTS
from protocol.ids import Root

PREFIX_BYTES: Final = 4096
"""Of a document that are looked at: enough to tell a language, and a peer has them before it has the rest."""

GRAM_BYTES: Final = 4
NUM_FEATURES: Final = 4096
_FEATURE_BITS: Final = 12
_MULTIPLIER: Final = np.uint32(2654435761)
"""Knuth's, the golden ratio of 2^32: neighbouring runs of bytes come to lie far apart (TAOCP 3, section 6.4)."""

CENTROID_LENGTH: Final = 8192
"""Of an expert's direction: as int16 it is exact to a part in thousands."""

PRICE_UNIT: Final = 16
"""A price is in so manieth parts of a centroid's length, times the document's own."""

NO_SECOND: Final = -1
"""As `DocumentRouter.second_within`: every document has one expert."""

_ROUNDS: Final = 20
_PRICE_STEPS: Final = 60
_MAGIC: Final = "potluck router 1"

Integers = npt.NDArray[np.int64]
Directions = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DocumentRouter:
    """Experts as directions of documents.

    Attributes:
        centroids_XF: (X, F) int16, each about CENTROID_LENGTH long.
        prices_X: (X,) int64, in parts of PRICE_UNIT of a centroid's length: what an expert's score is lowered by.
        second_within: a document's second expert is trained on it, too, where it is at most so much farther, in the same parts.
    """

    centroids_XF: npt.NDArray[np.int16]
    prices_X: Integers
    second_within: int = NO_SECOND

    @property
    def num_experts(self) -> int:
        """X."""
        return len(self.centroids_XF)

    def nearest(self, text: bytes, count: int = 1) -> tuple[int, ...]:
        """A document's experts, the nearest first; the lower number where two are as near.

        Raises:
            ConfigError: a document that is empty or no text, or more experts than there are.
        """
        if not 1 <= count <= self.num_experts:
            raise ConfigError(f"{count} experts of a document", f"1 to {self.num_experts}")
        order_X, _ = self._ranked(text)
        return tuple(int(expert) for expert in order_X[:count])

    def choices(self, text: bytes) -> tuple[int, ...]:
        """The experts that are trained on a document: the nearest, and the second where it is about as near (the overlap of DiPaCo,
        2403.10616, section 2.4). Raises ConfigError as `nearest`.
        """
        return self.chosen(text)[0]

    def chosen(self, text: bytes) -> tuple[tuple[int, ...], Integers]:
        """`choices`, and (X,) whole numbers: how much farther from the document each expert is than the nearest, in parts of
        PRICE_UNIT of a centroid's length. Raises ConfigError as `nearest`.
        """
        order_X, farther_X = self._ranked(text)
        near = [int(expert) for expert in order_X[:2]]
        return tuple(near[:1] + [expert for expert in near[1:] if farther_X[expert] <= self.second_within]), farther_X

    def _ranked(self, text: bytes) -> tuple[Integers, Integers]:
        """(X,) experts, the nearest first, and (X,) by their numbers how much farther they are."""
        features_F = features(text)
        length = _root(int(features_F @ features_F))
        scores_X: Integers = PRICE_UNIT * (self.centroids_XF.astype(np.int64) @ features_F) - self.prices_X * length
        return np.argsort(-scores_X, kind="stable"), (scores_X.max() - scores_X) // length

    def to_bytes(self) -> bytes:
        """A line of JSON, then the prices, what a second expert is within, and the centroids, little-endian."""
        head = {"kind": _MAGIC, "experts": self.num_experts, "features": NUM_FEATURES, "prefix": PREFIX_BYTES}
        numbers = np.append(self.prices_X, self.second_within).astype("<i8").tobytes()
        return json.dumps(head, sort_keys=True).encode() + b"\n" + numbers + self.centroids_XF.astype("<i2").tobytes()

    @property
    def root(self) -> Root:
        """What a manifest names: the hash of `to_bytes`."""
        return router_root(self.to_bytes())


def router_root(data: bytes) -> Root:
    """The root of a router file."""
    return Root(sha256(b"potluck router" + data).digest())


def router_from_bytes(data: bytes, root: Root, num_experts: int) -> DocumentRouter:
    """A router file of a run whose manifest names this root and so many experts.

    Raises:
        ConfigError: another file, or one of another run.
    """
    if router_root(data) != root:
        raise ConfigError(
            f"a router with root {router_root(data).hex()[:16]}", f"{root.hex()[:16]}, as the manifest says"
        )
    line, _, values = data.partition(b"\n")
    expected = {"kind": _MAGIC, "experts": num_experts, "features": NUM_FEATURES, "prefix": PREFIX_BYTES}
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    num_first_bytes = 8 * (num_experts + 1)
    if head != expected or len(values) != num_first_bytes + 2 * num_experts * NUM_FEATURES:
        raise ConfigError(f"a router file that begins {line[:120]!r}", json.dumps(expected, sort_keys=True))
    numbers = np.frombuffer(values[:num_first_bytes], dtype="<i8").astype(np.int64)
    centroids_XF = np.frombuffer(values[num_first_bytes:], dtype="<i2").astype(np.int16)
    return DocumentRouter(centroids_XF.reshape(num_experts, NUM_FEATURES), numbers[:-1], int(numbers[-1]))


def text_prefix(text: bytes) -> bytes:
    """As much of a document as is looked at.

    Raises:
        ConfigError: as `features`.
    """
    prefix = text[:PREFIX_BYTES]
    if not prefix.strip():
        raise ConfigError("a document that is empty", "some text", "leave it out of the data set")
    if len(prefix.decode("utf8", "ignore").encode()) < len(prefix) - 3:
        raise ConfigError("a document that is no text", "UTF-8", "leave it out of the data set")
    return prefix


def features(text: bytes) -> Integers:
    """(F,) whole numbers: of each place the root of 256 times how many of the prefix's runs of bytes fall there.

    Raises:
        ConfigError: a document that is empty, or no text (bytes that are not UTF-8 but for a letter that the prefix cut).
    """
    prefix = text_prefix(text)
    padded = np.frombuffer(prefix.ljust(GRAM_BYTES, b"\0"), dtype=np.uint8).astype(np.uint32)
    runs = len(padded) - GRAM_BYTES + 1
    grams = sum((padded[place : place + runs] << np.uint32(8 * place) for place in range(GRAM_BYTES)), np.uint32(0))
    places = (grams * _MULTIPLIER) >> np.uint32(32 - _FEATURE_BITS)
    counts_F = np.bincount(places.astype(np.int64), minlength=NUM_FEATURES)
    # a root is one correctly rounded operation everywhere; it keeps a licence at the head of a file from being all that is seen
    roots_F: Integers = np.sqrt(256.0 * counts_F).astype(np.int64)
    return roots_F


def _root(square: int) -> int:
    """The whole root of a whole number below 2^52, the same everywhere."""
    return int(np.sqrt(np.float64(square)))


def fit_router(documents: Sequence[bytes], num_experts: int, seed: int = 0, overlap: float = 0.0) -> DocumentRouter:
    """Experts as balanced clusters of these documents. On the host alone: what peers share is the file.

    Args:
        overlap: share of these documents, those that a second expert is nearest to, that two experts are trained on.

    Raises:
        ConfigError: fewer documents than experts, or one that is empty or no text.
    """
    if not 1 <= num_experts <= min(MAX_EXPERTS, len(documents)):
        raise ConfigError(
            f"{num_experts} experts for {len(documents)} documents", f"1 to {min(MAX_EXPERTS, len(documents))} experts"
        )
    unit_DF = _units(np.stack([features(text) for text in documents]))
    random = np.random.default_rng(seed)
    centroids_XF = _spread_out(unit_DF, num_experts, random)
    for _ in range(_ROUNDS):
        prices_X = _balanced_prices(unit_DF @ centroids_XF.T)
        labels_D = np.argmax(unit_DF @ centroids_XF.T - prices_X, axis=1)
        centroids_XF = _means(unit_DF, labels_D, centroids_XF)
    router = _rounded(centroids_XF, _balanced_prices(unit_DF @ centroids_XF.T))
    return _overlapping(router, documents, overlap)


def _overlapping(router: DocumentRouter, documents: Sequence[bytes], overlap: float) -> DocumentRouter:
    """The router with which this share of the documents has a second expert."""
    count = round(overlap * len(documents))
    if router.num_experts < 2 or not count:
        return router
    seconds = sorted(int(np.sort(router.chosen(text)[1])[1]) for text in documents)
    return replace(router, second_within=seconds[count - 1])


def refit_router(router: DocumentRouter, documents: Sequence[bytes], labels: Sequence[int]) -> DocumentRouter:
    """The router that sends these documents, as far as it can, where they were labelled, and to each expert as many; what a second
    expert is within stays.

    Labels are of the expert with the lowest loss (DiPaCo's discriminative routing, 2403.10616); an expert that got none keeps its
    direction.

    Raises:
        ConfigError: a label out of range, another number of labels than documents, or a document that is empty or no text.
    """
    if len(labels) != len(documents) or not documents or not all(0 <= label < router.num_experts for label in labels):
        raise ConfigError(f"{len(labels)} labels", f"{len(documents)}, each 0 to {router.num_experts - 1}")
    unit_DF = _units(np.stack([features(text) for text in documents]))
    centroids_XF = _means(unit_DF, np.array(labels), _units(router.centroids_XF.astype(np.int64)))
    refitted = _rounded(centroids_XF, _balanced_prices(unit_DF @ centroids_XF.T))
    return replace(refitted, second_within=router.second_within)


def _units(values_DF: Integers) -> Directions:
    lengths_D = np.sqrt((values_DF * values_DF).sum(axis=1, dtype=np.float64))
    units_DF: Directions = values_DF / np.maximum(lengths_D, 1.0)[:, None]
    return units_DF


def _spread_out(unit_DF: Directions, num_experts: int, random: np.random.Generator) -> Directions:
    """Documents far from each other to begin with (k-means++, Arthur and Vassilvitskii 2007)."""
    chosen = [int(random.integers(len(unit_DF)))]
    while len(chosen) < num_experts:
        far_D = np.maximum(1.0 - (unit_DF @ unit_DF[chosen].T).max(axis=1), 0.0)
        far_D[chosen] = 0.0
        weights_D = far_D if far_D.sum() > 0 else np.isin(np.arange(len(unit_DF)), chosen, invert=True).astype(float)
        chosen.append(int(random.choice(len(unit_DF), p=weights_D / weights_D.sum())))
    return unit_DF[chosen]


def _balanced_prices(similar_DX: Directions) -> Directions:
    """What each expert's similarity is lowered by so that all get about as many documents: raised where one has too many, by less each
    time.
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
            after_XF[expert] = mean_F / np.sqrt((mean_F * mean_F).sum())
    return after_XF


def _rounded(centroids_XF: Directions, prices_X: Directions) -> DocumentRouter:
    whole_XF = np.rint(CENTROID_LENGTH * centroids_XF).astype(np.int16)
    return DocumentRouter(whole_XF, np.rint(PRICE_UNIT * CENTROID_LENGTH * prices_X).astype(np.int64))
