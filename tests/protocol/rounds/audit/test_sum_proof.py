from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.audit.sum_proof import (
    MOST_LEVELS,
    ShownChunk,
    SumProof,
    decode_proof,
    encode_proof,
    hash_of_proof,
    most_proof_bytes,
    notice_of,
)
from protocol.rounds.messages.bounds import MAX_MEMBERS
from protocol.rounds.messages.claim import Input, SliceSum
from protocol.rounds.messages.messages import FalseSum
from protocol.rounds.messages.record import Disagreement

UNIT, BASE, LIAR = UnitName("unit"), CommitId(b"b" * 32), PeerId("liar")
INPUTS = (Input(PeerId("a"), Root(b"1" * 32), 100), Input(PeerId("b"), Root(b"2" * 32), 0))
SUM = SliceSum(UNIT, BASE, 4, 9, LIAR, Root(b"r" * 32), 12, INPUTS, (Disagreement(PeerId("b"), 1, -40),))
SHOWN = (ShownChunk(Root(b"1" * 32), b"p" * 64, b"chunk"), ShownChunk(Root(b"2" * 32), b"", b"other"))
PROOF = SumProof(SUM, b"seal", 7, b"l" * 32, b"q" * 96, SHOWN)


def test_a_proof_survives_the_wire_and_its_notice_names_it() -> None:
    data = encode_proof(PROOF)
    assert decode_proof(data, 5) == PROOF
    assert notice_of(PROOF, data) == FalseSum(UNIT, BASE, LIAR, Root(b"r" * 32), hash_of_proof(data))
    assert PROOF.words == f"signed a false sum of chunk 7 on base {BASE.hex()[:8]}"


def test_a_proof_with_bytes_that_nobody_signed_or_that_is_too_long_is_refused() -> None:
    """Else one lie could be told of again and again under new hashes."""
    data = encode_proof(PROOF)
    for changed in (data + b"\xfa\x01\x01x", data[:-3], b"", b"\x08\x01"):
        with pytest.raises(RemoteProtocolError):
            decode_proof(changed, 5)
    long = replace(PROOF, shown=(replace(SHOWN[0], data=bytes(most_proof_bytes(5))), SHOWN[1]))
    with pytest.raises(RemoteProtocolError):
        decode_proof(encode_proof(long), 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"leaf": b"short"},
        {"path": b"p" * 31},
        {"path": b"p" * 32 * (MOST_LEVELS + 1)},
        {"shown": SHOWN[:1]},
        {"sum": replace(SUM, inputs=()), "shown": ()},
        {"sum": replace(SUM, inputs=(replace(INPUTS[0], weight=-1), INPUTS[1]))},
        {"sum": replace(SUM, inputs=(replace(INPUTS[0], weight=(1 << 53) + 1), INPUTS[1]))},
        {"sum": replace(SUM, inputs=(replace(INPUTS[0], weight=0), INPUTS[1]))},
        {"sum": replace(SUM, inputs=INPUTS[:1] * (MAX_MEMBERS + 1)), "shown": SHOWN[:1] * (MAX_MEMBERS + 1)},
    ],
)
def test_a_proof_out_of_its_bounds_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        replace(PROOF, **changes)  # type: ignore[arg-type]


def test_a_shown_chunk_out_of_its_bounds_is_refused() -> None:
    for changes in ({"root": b"short"}, {"path": b"p" * 33}):
        with pytest.raises(RemoteProtocolError):
            replace(SHOWN[0], **changes)  # type: ignore[arg-type]
