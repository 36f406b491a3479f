"""Routes each document of a corpus to its experts, on the host: fits a router to a sample, then chooses for every document.

The text is read twice, one document's beginning at a time: once for the sample, once to choose. Memory holds the sample, the choices,
and for each expert the few documents that it would get next.
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
"""Number of documents that a router is fitted to: some hundreds per expert, and little work."""

LEAST_DOCUMENTS: Final = 16
"""Smallest number of training documents of an expert. With fewer, it memorises them (in OpenDiPaCo experts collapsed as their
number grew on the same data).
"""

OVERLAP: Final = 0.25
"""Share of the documents on which two experts train."""

FitEmbeddings = Callable[[Sequence[bytes]], Embeddings]
"""Returns the embeddings used for the features of documents like these."""

ReadTexts = Callable[[], Iterable[Text]]
"""Returns the pieces of all documents, the same each time."""


@dataclass(frozen=True)
class Routing:
    """A router, and for each document, in the order of the texts, its experts, nearest first."""

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
    """Fit a router to a sample of the training documents, and route every document.

    A training document goes to its nearest expert, and to its second expert if that is almost as near. An expert with fewer than
    `least_documents` then also gets the nearest documents of others. A held-out document belongs to one expert.

    Args:
        read: returns the corpus.
        num_experts: of the run.
        seed: of the clustering.
        overlap: share of the documents on which two experts train.
        least_documents: smallest number of training documents of each expert.
        embeddings: makes embeddings from the sample, for document features; None for byte runs.

    Raises:
        ConfigError: a document that is empty or not text, or too few documents.
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
    """Like `route_documents`, with an existing router."""
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
    """The other experts' documents that are nearest to an expert, up to a limit."""

    most: int
    _heap: list[tuple[int, int]] = field(default_factory=list)

    def add(self, number: int, farther: int) -> None:
        heapq.heappush(self._heap, (-farther, -number))
        if len(self._heap) > self.most:
            heapq.heappop(self._heap)

    def nearest(self, count: int) -> list[int]:
        """The numbers of the nearest documents; the earlier one first if two are equally near."""
        return [-negative for _, negative in sorted(self._heap, reverse=True)[:count]]


@contextmanager
def _of_document(number: int, beginning: Beginning) -> Iterator[None]:
    """Add the document's name to an error."""
    try:
        yield
    except ConfigError as error:
        found = error.found.removeprefix("a document that ").removeprefix("a text ")
        place = beginning.place or f"document {number + 1}"
        raise ConfigError(f"data: {place} {found}", error.expected, error.remedy) from error


def _sample(texts: Iterable[Text]) -> list[bytes]:
    """Beginnings of the training documents with the lowest hashes. Their order does not matter."""
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
    """The beginning of a document, as far as a router reads; its part of the data, and its name in errors, empty if it has only a
    number.
    """

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
    """Documents that are not empty. Text chosen by a host has no empty files, but libraries of source text do."""
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
