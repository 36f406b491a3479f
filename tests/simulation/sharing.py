"""A message from one peer to many is opened, decoded and checked once in a simulated world: the same bytes make the same frozen
answer.

Every function shared here depends on its arguments alone and answers with what nobody can change, so that a world in which each peer
judges for itself has the same trace. A refusal is not remembered: the message is judged again each time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from averaging.arithmetic import batched_codec as chunk_runs
from averaging.codecs import Codec
from averaging.rounds import inbox
from averaging.rounds.exchange import exchange
from averaging.rounds.exchange import offered_contributions as offers
from averaging.rounds.lineage import next_state
from averaging.rounds.traffic import contribution, transfer
from protocol.identity import envelope
from protocol.identity.envelope import Envelope
from protocol.identity.identity import Verifier
from protocol.ids import Root
from protocol.rounds import bad_results
from protocol.rounds.lineage import chain
from protocol.rounds.messages import claim, wire
from protocol.tensors.tensor_schema import ChunkGrid

NUM_MESSAGES = 1024
"""Remembered at a time: more than are on their way."""

NUM_SIGNED = 4096
"""Signed parts of a round remembered at a time: 64 acks and 32 results for each of several units and attempts."""

NUM_ACKS = 8192
"""Acks: who is restarted reads those of all rounds again, and a day of a large swarm has a hundred rounds of 64."""


@contextmanager
def shared_decoding() -> Iterator[None]:
    """Until the world ends."""
    decode_body = functools.lru_cache(NUM_SIGNED)(wire.decode_body)
    open_envelope, check_result = _opening(), _checking()
    shared: list[tuple[ModuleType, str, Any]] = [
        (inbox, "decode_message", functools.lru_cache(NUM_MESSAGES)(wire.decode_message)),
        (inbox, "open_envelope", open_envelope),
        (chain, "open_ack", functools.lru_cache(NUM_ACKS)(chain.open_ack)),
        *((module, "decode_body", decode_body) for module in (bad_results, exchange, wire)),
        (offers, "decode_claim", functools.lru_cache(NUM_SIGNED)(claim.decode_claim)),
        *((module, "open_envelope", open_envelope) for module in (bad_results, exchange, offers)),
        (transfer, "check_result", check_result),
        (next_state, "decode_run", _decoding()),
    ]
    own = [(module, name, getattr(module, name)) for module, name, _ in shared]
    _set(shared)
    try:
        yield
    finally:
        _set(own)


def _set(functions: list[tuple[ModuleType, str, Any]]) -> None:
    for module, name, function in functions:
        setattr(module, name, function)


def _opening() -> Any:
    """As `open_envelope`; each asker's clock is asked anew."""

    @functools.lru_cache(NUM_SIGNED)
    def opened(data: bytes, verifier: Verifier, domain: str, run_id: bytes | None) -> Envelope:
        return envelope.open_envelope(data, verifier=verifier, domain=domain, run_id=run_id, now_unix_ms=None)

    def open_envelope(
        data: bytes, *, verifier: Verifier, domain: str, run_id: bytes | None, now_unix_ms: int | None
    ) -> Envelope:
        found = opened(data, verifier, domain, run_id)
        if now_unix_ms is not None and now_unix_ms > found.expires_unix_ms:
            return envelope.open_envelope(
                data, verifier=verifier, domain=domain, run_id=run_id, now_unix_ms=now_unix_ms
            )
        return found

    return open_envelope


def _checking() -> Any:
    """As `check_result`."""

    @functools.lru_cache(NUM_SIGNED)
    def checked(chunks: tuple[bytes, ...], result_hash: Root, first: int, codec: Codec, grid: ChunkGrid) -> None:
        contribution.check_result(chunks, result_hash, first, codec, grid)

    def check_result(
        chunks: Sequence[bytes], result_hash: Root, first_chunk: int, codec: Codec, grid: ChunkGrid
    ) -> None:
        checked(tuple(chunks), result_hash, first_chunk, codec, grid)

    return check_result


def _decoding() -> Any:
    """As `decode_run`: of a result, which all members decode. Each has values of its own, for tensors can be changed."""

    @functools.lru_cache(NUM_SIGNED)
    def values(codec: Codec, chunks: tuple[bytes, ...], chunk_elements: int, num_elements: int) -> torch.Tensor:
        return chunk_runs.decode_run(codec, chunks, chunk_elements, num_elements)

    def decode_run(
        codec: Codec, chunks: Sequence[bytes | memoryview], chunk_elements: int, num_elements: int
    ) -> torch.Tensor:
        return values(codec, tuple(map(bytes, chunks)), chunk_elements, num_elements).clone()

    return decode_run
