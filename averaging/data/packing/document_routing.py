"""Which experts each document of a corpus is packed for, on the host: a router fitted to a sample, then every document's choice.

The text is read twice, a document's beginning at a time: once for the sample, once to choose. What stays in memory is the sample, the
choices, and for each expert the few documents that it would get next.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from averaging.data.packing.document_features import PREFIX_BYTES, Embeddings, Integers, text_prefix
from averaging.data.packing.document_router import DocumentRouter, fit_router
from averaging.data.sources.texts import Split, Text
from protocol.errors import ConfigError

SAMPLE_DOCUMENTS: Final = 2048
"""That a router is fitted to: enough for some hundreds an expert, and a few seconds' work."""

LEAST_DOCUMENTS: Final = 16
"""An expert that gets fewer learns them by heart (OpenDiPaCo saw experts collapse as they grew more on the same data)."""

OVERLAP: Final = 0.25
"""Share of the documents that two experts are trained on."""

FitEmbeddings = Callable[[Sequence[bytes]], Embeddings]
"""Embeddings by which documents like these are known."""

ReadTexts = Callable[[], Iterable[Text]]
"""The pieces of all documents, the same each time."""


@dataclass(frozen=True)
class Routing:
    """A router, and of each document, in the order of the texts, the experts that it is packed for, its own first."""

    router: DocumentRouter
    choices: Sequence[tuple[int, ...]]


def route_documents(
    read: ReadTexts,
    num_experts: int,
    *,
    seed: int = 0,
    overlap: float = OVERLAP,
    least_documents: int = LEAST_DOCUMENTS,
    embeddings: FitEmbeddings | None = None,
) -> Routing:
    """Fit a router to a sample of the training documents, and send every document where it belongs.

    A document for training is its first expert's, and its second's where that is about as near; an expert that has fewer than
    `least_documents` then gets the nearest of the others' beside. What is measured on belongs to one expert.

    Args:
        read: of the corpus.
        num_experts: of the run.
        seed: of the clustering.
        overlap: share of the documents that two experts are trained on.
        least_documents: for training, of each expert.
        embeddings: of the sample, by which documents are known; None for runs of bytes.

    Raises:
        ConfigError: a document that is empty or no text, or too few documents.
    """
    sample = _sample(read())
    if len(sample) < least_documents:
        raise ConfigError(
            f"data: {len(sample)} documents to train on",
            f"at least {least_documents}, which each expert gets",
            "add documents, or split long ones",
        )
    known_by = embeddings(sample) if embeddings is not None else None
    router = fit_router(sample, num_experts, seed, overlap, known_by)
    return route_with(router, read, least_documents=least_documents)


def route_with(router: DocumentRouter, read: ReadTexts, *, least_documents: int = LEAST_DOCUMENTS) -> Routing:
    """As `route_documents`, with a router that is there already."""
    choices: list[tuple[int, ...]] = []
    next_ones = [_NextOnes(least_documents) for _ in range(router.num_experts)]
    counts = [0] * router.num_experts
    for number, beginning in enumerate(document_prefixes(read())):
        with _of_document(number, beginning):
            chosen, farther_X = router.chosen(beginning.prefix)
        if beginning.split != "train":
            choices.append(chosen[:1])
            continue
        choices.append(chosen)
        for expert in chosen:
            counts[expert] += 1
        _offer(number, chosen, farther_X, next_ones)
    for expert, waiting in enumerate(next_ones):
        for number in waiting.nearest(max(0, least_documents - counts[expert])):
            choices[number] = (*choices[number], expert)
    return Routing(router, tuple(choices))


def _offer(number: int, chosen: Sequence[int], farther_X: Integers, next_ones: Sequence[_NextOnes]) -> None:
    for expert, waiting in enumerate(next_ones):
        if expert not in chosen:
            waiting.add(number, int(farther_X[expert]))


@dataclass
class _NextOnes:
    """The documents of others that are nearest to an expert, at most so many."""

    most: int
    _heap: list[tuple[int, int]] = field(default_factory=list)

    def add(self, number: int, farther: int) -> None:
        heapq.heappush(self._heap, (-farther, -number))
        if len(self._heap) > self.most:
            heapq.heappop(self._heap)

    def nearest(self, count: int) -> list[int]:
        """Of the documents' numbers; the earlier one where two are as near."""
        return [-negative for _, negative in sorted(self._heap, reverse=True)[:count]]


@contextmanager
def _of_document(number: int, beginning: Beginning) -> Iterator[None]:
    """Say which document an error is about."""
    try:
        yield
    except ConfigError as error:
        found = error.found.removeprefix("a document that ")
        place = beginning.place or f"document {number + 1}"
        raise ConfigError(f"data: {place} {found}", error.expected, error.remedy) from error


def _sample(texts: Iterable[Text]) -> list[bytes]:
    """Beginnings of training documents, those with the lowest hashes: the same ones in whatever order they come."""
    heap: list[tuple[int, bytes]] = []
    for number, beginning in enumerate(document_prefixes(texts)):
        prefix = beginning.prefix
        with _of_document(number, beginning):
            text_prefix(prefix)
        if beginning.split != "train":
            continue
        heapq.heappush(heap, (-int.from_bytes(sha256(prefix).digest(), "big"), prefix))
        if len(heap) > SAMPLE_DOCUMENTS:
            heapq.heappop(heap)
    return [prefix for _, prefix in sorted(heap, reverse=True)]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of a document, as far as a router looks; its part of the data, and what errors call it, empty where that is its number alone."""

    prefix: bytes
    split: Split
    place: str


def document_prefixes(texts: Iterable[Text]) -> Iterator[Beginning]:
    """The beginning of each document."""
    prefix = b""
    for text in texts:
        prefix += text.data[: PREFIX_BYTES - len(prefix)]
        if text.is_last:
            yield Beginning(prefix, text.split, text.place)
            prefix = b""


def without_empty(texts: Iterable[Text]) -> Iterator[Text]:
    """The documents that say something: what a host chooses by hand has no empty ones, libraries of source text do."""
    held: list[Text] = []
    says = False
    for text in texts:
        held.append(text)
        says = says or bool(text.data.strip()) or sum(len(part.data) for part in held) > PREFIX_BYTES
        if says:
            yield from held
        if says or text.is_last:
            held = []
        says = says and not text.is_last
