from __future__ import annotations

import pytest

from averaging.rounds.result_word import ResultWord, read_word
from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, Root

BASE, ROOT = CommitId(b"b" * 32), Root(b"r" * 32)


def test_a_word_is_forty_bytes_whatever_the_members_and_names_the_result() -> None:
    word = ResultWord(BASE, 3, 5, ROOT)
    assert len(word.encode()) == 40
    assert read_word(word.encode(), BASE) == word


@pytest.mark.parametrize("frame", [b"", bytes(39), bytes(41)])
def test_a_word_of_another_length_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="40"):
        read_word(frame, BASE)
