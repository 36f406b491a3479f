"""The state that simulated peers share: each of them still judges by its own clock, and nothing is shared outside a world."""

from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.batched_codec import encode_run
from averaging.codecs import codec_by_name
from averaging.rounds import inbox
from averaging.rounds.exchange import offered_contributions as offers
from averaging.rounds.lineage import next_state
from averaging.rounds.traffic import transfer
from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import seal
from protocol.rounds import bad_results
from protocol.rounds.lineage import chain
from protocol.rounds.messages import wire
from protocol.tensors.tensor_schema import ChunkGrid
from tests.simulation.sharing import shared_decoding
from tests.simulation.signing import HashSigner, HashVerifier

RUN_ID = bytes(32)
EXPIRES_MS = 1000
VERIFIER = HashVerifier()
SEALED = seal(HashSigner(b"somebody"), "a domain", RUN_ID, 1, EXPIRES_MS, b"a word")


def _opened(data: bytes, now_unix_ms: int | None) -> bytes:
    return inbox.open_envelope(
        data, verifier=VERIFIER, domain="a domain", run_id=RUN_ID, now_unix_ms=now_unix_ms
    ).payload


def test_a_message_that_one_peer_opened_in_time_is_refused_by_another_whose_clock_says_that_it_expired() -> None:
    with shared_decoding():
        assert _opened(SEALED, EXPIRES_MS) == b"a word"
        with pytest.raises(RemoteProtocolError, match="expired"):
            _opened(SEALED, EXPIRES_MS + 1)
        assert _opened(SEALED, None) == b"a word"


def test_a_changed_byte_is_refused_beside_the_message_that_was_opened() -> None:
    with shared_decoding():
        assert _opened(SEALED, None) == b"a word"
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="bad signature"):
                _opened(SEALED[:-1] + bytes([SEALED[-1] ^ 1]), None)


def test_each_member_has_values_of_its_own_of_a_result_that_is_decoded_once() -> None:
    codec, grid, run = codec_by_name("int8"), ChunkGrid(24, 6), range(1, 3)
    values_n = torch.linspace(-1.0, 2.0, 12)
    chunks = encode_run(codec, values_n, 6)
    expected_n = next_state.decoded(codec, grid, run, chunks)
    with shared_decoding():
        first_n = next_state.decoded(codec, grid, run, [memoryview(chunk) for chunk in chunks])
        assert torch.equal(first_n, expected_n)
        first_n.zero_()
        assert torch.equal(next_state.decoded(codec, grid, run, chunks), expected_n)
        for _ in range(2):
            with pytest.raises(RemoteProtocolError):
                next_state.decoded(codec, grid, run, [chunks[0], chunks[1][:-1]])


def test_nothing_is_shared_once_the_world_has_ended() -> None:
    names = [
        (inbox, "decode_message"),
        (inbox, "open_envelope"),
        (chain, "open_ack"),
        (bad_results, "decode_body"),
        (bad_results, "open_envelope"),
        (offers, "decode_claim"),
        (wire, "decode_body"),
        (transfer, "check_result"),
        (next_state, "decode_run"),
    ]
    before = [getattr(module, name) for module, name in names]
    with shared_decoding():
        assert all(getattr(module, name) is not own for (module, name), own in zip(names, before, strict=True))
    assert [getattr(module, name) for module, name in names] == before
