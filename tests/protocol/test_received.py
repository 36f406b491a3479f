"""Bytes of strangers: their length, their form, and what of their words is shown."""

from __future__ import annotations

import pytest

from protocol.errors import RemoteProtocolError
from protocol.pb import coordinator_pb2 as pb
from protocol.received import MAX_TEXT, parse, require, require_hash_or_none, shown


def test_a_refusal_says_what_was_found_and_expected() -> None:
    with pytest.raises(RemoteProtocolError, match="seven; expected eight"):
        require(False, "seven", "eight")


def test_what_is_fine_passes() -> None:
    require(True, "", "")
    require_hash_or_none("head", b"")
    require_hash_or_none("head", bytes(32))


@pytest.mark.parametrize("length", [1, 31, 33])
def test_a_hash_of_another_length_is_refused_by_its_name(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"head of {length} bytes"):
        require_hash_or_none("head", bytes(length))


def test_more_bytes_than_a_message_may_have_are_refused_before_they_are_read() -> None:
    data = pb.ErrorBody(found="x" * 100).SerializeToString()
    assert parse(pb.ErrorBody, data, len(data)).found == "x" * 100
    with pytest.raises(RemoteProtocolError, match=f"ErrorBody of {len(data)} bytes"):
        parse(pb.ErrorBody, data, len(data) - 1)


def test_bytes_that_are_no_message_are_refused_by_its_name() -> None:
    with pytest.raises(RemoteProtocolError, match="no ErrorBody"):
        parse(pb.ErrorBody, b"\xff\xff\xff", 10)


def test_of_a_text_only_what_can_be_printed_is_shown() -> None:
    assert shown("\x1b[2Jgone\n") == " [2Jgone "
    assert len(shown("x" * 1000)) == MAX_TEXT
