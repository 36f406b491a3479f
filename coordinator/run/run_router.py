"""Chooses the expert that each document of a run is packed for: with the router file named in run.toml, or with one made from the
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from averaging.data.packing.document_router import DocumentRouter, router_from_bytes, router_root
from averaging.data.packing.document_routing import Routing, route_documents, route_with, without_empty
from averaging.data.sources.sources import Source
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import Tokenizer
from coordinator.run.routing_embeddings import first_embeddings
from protocol.errors import ConfigError
from protocol.plain_file import check_plain_file
from protocol.run.experts_section import MAX_EMBEDDING_FEATURES, ExpertsSection
from protocol.run.manifest import RunConfig

MOST_TABLE_BYTES: Final = 60 << 20
"""Most bytes of embeddings in a router's file: `MAX_ROUTER_BYTES` less room for the directions of all experts."""

_REMEDY: Final = "correct experts.router in the run file, or leave it out"


def check_router(config: RunConfig, base: Path) -> None:
    """Refuse a router file that is missing or does not fit this run, and embeddings that are too large for one. `base` is the
    folder that the path is relative to. Blocks.

    Raises:
        ConfigError: the file is missing, has another number of experts or other features, or there are too many tokens.
    """
    if config.experts is None:
        return
    num_tokens, num_features = config.model.vocab_size, min(config.model.dim, MAX_EMBEDDING_FEATURES)
    if config.experts.router_features == "embeddings" and num_tokens * num_features > MOST_TABLE_BYTES:
        raise ConfigError(
            f'experts.router_features = "embeddings" of {num_tokens} tokens, {num_features} bytes each',
            f"at most {MOST_TABLE_BYTES >> 20} MiB",
            'take "grams", or fewer tokens',
        )
    if config.experts.router:
        _router_file(base / config.experts.router, config.experts)


def packed_texts(config: RunConfig, source: Source) -> Callable[[], Iterator[Text]]:
    """A function that reads the texts to pack, each time from the beginning. With experts, empty files of a library of source text
    are left out, since no expert can be chosen for them. Files that the host chose are all packed, or refused.
    """
    leaves_out = config.experts is not None and config.data.source == "python-stdlib"

    def read() -> Iterator[Text]:
        texts = chain(source.texts(), source.prose())
        return without_empty(texts) if leaves_out else texts

    return read


def routing_of(
    config: RunConfig, base: Path, read: Callable[[], Iterator[Text]], tokenizer: Tokenizer
) -> Routing | None:
    """The experts of each document from `read`; None in a run without experts. Blocks, and reads the documents twice.

    Raises:
        ConfigError: a document is empty or no text, there are too few, or as `check_router`.
    """
    experts = config.experts
    if experts is None:
        return None
    if experts.router:
        router = _router_file(base / experts.router, experts, tokenizer)
        return route_with(router, read, least_documents=experts.min_documents)
    return route_documents(
        read,
        experts.num_experts,
        seed=config.run.seed,
        least_documents=experts.min_documents,
        embeddings=first_embeddings(config, tokenizer) if experts.router_features == "embeddings" else None,
    )


def _router_file(path: Path, experts: ExpertsSection, tokenizer: Tokenizer | None = None) -> DocumentRouter:
    check_plain_file(path, "a router file", _REMEDY)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "a router file", _REMEDY) from error
    features = experts.router_features
    try:
        return router_from_bytes(data, router_root(data), experts.num_experts, features=features, tokenizer=tokenizer)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.found}", error.expected, _REMEDY) from error
