from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, Root, UnitName
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import (
    MAX_KNOWN,
    NO_PART,
    NOTHING_TO_OFFER,
    ExchangeHello,
    FetchCommits,
    FetchResult,
)
from protocol.rounds.messages.wire import decode_body, decode_fetch, encode_body, encode_fetch
from tests.protocol.rounds.round_table import Table

UNIT = UnitName("fragment-0")


def _ids(count: int) -> tuple[CommitId, ...]:
    return tuple(CommitId(bytes([i]) * 32) for i in range(count))


def test_who_asks_for_commits_names_one_that_it_knows_and_no_more_than_a_donor_will_look_up() -> None:
    assert len(FetchCommits(UNIT, _ids(MAX_KNOWN)).known) == MAX_KNOWN
    with pytest.raises(RemoteProtocolError, match="0 known commits"):
        FetchCommits(UNIT, ())
    with pytest.raises(RemoteProtocolError, match="65 known commits"):
        FetchCommits(UNIT, _ids(MAX_KNOWN + 1))


def test_a_request_with_too_many_known_commits_is_refused_when_it_is_read() -> None:
    request = FetchCommits(UNIT, _ids(MAX_KNOWN))
    wire = encode_fetch(request)
    assert decode_fetch(wire) == request
    one_more = encode_fetch(FetchCommits(UNIT, _ids(1)))
    with pytest.raises(RemoteProtocolError, match="known commits"):
        decode_fetch(_merged(wire, one_more))


def _merged(one: bytes, other: bytes) -> bytes:
    """Protobuf merges a message that comes twice: its lists are joined."""
    return one + other


def test_what_a_peer_asks_for_is_read_as_it_was_meant() -> None:
    base = Table(1).genesis.commit
    result = FetchResult(UNIT, base, 3, 7, Root(b"r" * 32))
    assert decode_fetch(encode_fetch(result)) == result
    hello = ExchangeHello(UNIT, base, Ballot(2, Table(1).live()[0].peer), 3, b"", bytes(64))
    assert decode_body(ExchangeHello, encode_body(hello)) == hello
    spare = replace(hello, no_part=True)
    assert decode_body(ExchangeHello, encode_body(spare)) == spare
    assert (hello.why_nothing, spare.why_nothing) == (NOTHING_TO_OFFER, NO_PART)
    with pytest.raises(RemoteProtocolError, match="without a part"):
        replace(spare, contribution=b"signed")
