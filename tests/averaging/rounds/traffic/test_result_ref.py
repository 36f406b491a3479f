from __future__ import annotations

import pytest

from averaging.rounds.traffic.result_ref import ResultRef, need_from, read_need, read_ref
from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, Root

BASE, ROOT = CommitId(b"b" * 32), Root(b"r" * 32)


def test_a_word_is_forty_bytes_whatever_the_members_and_names_the_result() -> None:
    word = ResultRef(BASE, 3, 5, ROOT)
    assert len(word.encode()) == 40
    assert read_ref(word.encode(), BASE) == word


@pytest.mark.parametrize("frame", [b"", bytes(39), bytes(41)])
def test_a_word_of_another_length_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="40"):
        read_ref(frame, BASE)


@pytest.mark.parametrize("place", [0, 1, 6])
def test_a_need_names_the_first_chunk_that_is_missing(place: int) -> None:
    assert read_need(need_from(place), 6) == place
    assert len(need_from(place)) == (5 if place else 1)


def test_who_has_all_of_a_result_needs_nothing() -> None:
    assert read_need(b"H", 6) is None


@pytest.mark.parametrize("frame", [need_from(7), b"N" + bytes(3), b"N" + bytes(5)])
def test_a_need_of_what_the_result_does_not_have_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="at most chunk 6"):
        read_need(frame, 6)
