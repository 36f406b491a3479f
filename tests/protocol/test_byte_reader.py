"""Reading fields off the front of bytes."""

from __future__ import annotations

import pytest

from protocol.byte_reader import ByteReader, BytesLeftError, CutOffError


def test_fields_come_in_their_order_and_the_end_is_the_end() -> None:
    reader = ByteReader(b"\x07\x01\x02ab\xc3\xa4")
    assert (reader.u8(), reader.u16(), reader.take(2), reader.text(2), reader.take(0)) == (7, 258, b"ab", "\u00e4", b"")
    reader.end()


def test_a_field_that_is_cut_off_takes_nothing() -> None:
    reader = ByteReader(b"abc")
    with pytest.raises(CutOffError, match="4 bytes of which 3 are there"):
        reader.take(4)
    assert reader.take(3) == b"abc"
    for read in (reader.u8, reader.u16):
        with pytest.raises(CutOffError):
            read()


def test_bytes_that_are_left_are_counted() -> None:
    reader = ByteReader(b"abc")
    reader.u8()
    with pytest.raises(BytesLeftError, match="2 bytes more than its parts") as caught:
        reader.end()
    assert caught.value.num_bytes == 2


def test_text_that_is_none_is_a_value_error() -> None:
    with pytest.raises(UnicodeDecodeError):
        ByteReader(b"\xff").text(1)
