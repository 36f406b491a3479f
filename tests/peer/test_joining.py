from __future__ import annotations

import pytest

from averaging.start_state import start_root
from peer.joining import check_start
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import VersionError
from protocol.ids import PeerId, Root
from protocol.rounds.messages import StartRecord, StartUnit
from protocol.tensor_schema import ChunkGrid
from protocol.wire import encode_body

CONFIG = DecoderConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)
SCHEMA = decoder_schema(CONFIG)
GRID = ChunkGrid(SCHEMA.num_elements, 500)


def _start(fingerprint: bytes, root: Root) -> bytes:
    return encode_body(StartRecord(bytes(32), (StartUnit(SCHEMA.unit, fingerprint, root),), (PeerId("p"),), 100, 0))


def test_a_start_with_our_own_tensors_and_first_state_is_joined() -> None:
    root = start_root(SCHEMA, GRID, 1)
    check_start(_start(SCHEMA.fingerprint(), root), SCHEMA, root)


def test_a_run_of_another_schema_is_refused_with_the_release_to_install() -> None:
    root = start_root(SCHEMA, GRID, 1)
    with pytest.raises(VersionError, match=r"other tensors.*same release"):
        check_start(_start(bytes(32), root), SCHEMA, root)


def test_a_run_that_begins_from_other_bytes_is_refused() -> None:
    with pytest.raises(VersionError, match="first state"):
        check_start(_start(SCHEMA.fingerprint(), start_root(SCHEMA, GRID, 2)), SCHEMA, start_root(SCHEMA, GRID, 1))
