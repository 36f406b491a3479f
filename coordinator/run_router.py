"""Which experts a run's documents are packed for: by the router file that the host names in run.toml, or by one made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from averaging.data.document_router import router_from_bytes, router_root
from averaging.data.document_routing import Routing, routed, without_empty
from averaging.data.routing_sample import RoutingSample, routing_sample, window_tokens
from averaging.data.sources import Source
from averaging.data.texts import Text
from averaging.data.tokenizer import Tokenizer
from protocol.errors import ConfigError
from protocol.manifest import RunConfig
from protocol.plain_file import check_plain_file

_REMEDY: Final = "correct experts.router in run.toml, or leave it out"


def check_router(config: RunConfig, base: Path) -> None:
    """Refuse a router file that is not there or not of this run, as seen from the folder `base`. Blocks.

    Raises:
        ConfigError: no such file, or not one of so many experts.
    """
    if config.experts is None or not config.experts.router:
        return
    _router_file(base / config.experts.router, config.experts.num_experts)


def packed_texts(config: RunConfig, source: Source) -> Callable[[], Iterator[Text]]:
    """What is packed, from its beginning each time. Of a library of source text empty files are left out where documents have experts:
    they are nobody's. Files that a host chose itself are all packed, or refused.
    """
    leaves_out = config.experts is not None and config.data.source == "python-stdlib"

    def read() -> Iterator[Text]:
        texts = chain(source.texts(), source.prose())
        return without_empty(texts) if leaves_out else texts

    return read


def routing_of(config: RunConfig, base: Path, read: Callable[[], Iterator[Text]]) -> Routing | None:
    """The experts of each document that `read` gives; None in a run without. Blocks, for two readings.

    Raises:
        ConfigError: a document that is empty or no text, too few of them, or as `check_router`.
    """
    experts = config.experts
    if experts is None:
        return None
    data = _router_file(base / experts.router, experts.num_experts) if experts.router else b""
    return routed(
        read,
        experts.num_experts,
        seed=config.run.seed,
        least_documents=experts.min_documents,
        router_file=data,
    )


def sample_of(config: RunConfig, read: Callable[[], Iterator[Text]], tokenizer: Tokenizer) -> RoutingSample | None:
    """The documents on which experts are compared; None in a run that never sends documents elsewhere. Blocks, for one reading.

    Raises:
        ConfigError: too few documents are long enough.
    """
    if config.experts is None or not config.experts.reassign_every_rounds:
        return None
    return routing_sample(read, tokenizer, window_tokens(config.model.context_tokens))


def _router_file(path: Path, num_experts: int) -> bytes:
    check_plain_file(path, "a router file", _REMEDY)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "a router file", _REMEDY) from error
    try:
        router_from_bytes(data, router_root(data), num_experts)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.found}", error.expected, _REMEDY) from error
    return data
