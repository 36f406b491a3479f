from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from averaging.data.sources import texts
from averaging.data.sources.corpus import Document
from averaging.data.sources.texts import (
    MAX_DOCUMENT_BYTES,
    PIECE_BYTES,
    Text,
    one_document,
    read_files,
    read_prose,
    split_by_content,
    whole_documents,
)
from protocol.errors import ConfigError, MachineError


def _read(path: Path, *, is_utf8: bool = True) -> list[Text]:
    return list(read_files([Document(path.name, path, False)], is_utf8=is_utf8))


def test_a_long_file_comes_in_pieces_that_end_with_lines(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("a line of text\n" * (3 * PIECE_BYTES // 15))
    read = _read(path)
    assert len(read) > 3
    assert b"".join(text.data for text in read) == path.read_bytes()
    assert [text.is_last for text in read] == [False] * (len(read) - 1) + [True]
    assert all(text.data.endswith(b"\n") for text in read[:-1])


def test_a_line_longer_than_a_piece_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("x" + "\U0001f642" * PIECE_BYTES)
    read = _read(path)
    assert "".join(text.data.decode() for text in read) == path.read_text()
    assert max(len(text.data) for text in read) <= PIECE_BYTES + 4


def test_bytes_that_are_no_text_are_taken_as_they_are_or_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"fine\n" * PIECE_BYTES + b"\n\xff\n")
    assert b"".join(text.data for text in _read(path, is_utf8=False)) == path.read_bytes()
    with pytest.raises(ConfigError, match=rf"bad\.txt line {PIECE_BYTES + 2} is no UTF-8"):
        _read(path)
    path.write_bytes(b"cut \xf0\x9f")
    with pytest.raises(ConfigError, match=r"bad\.txt line 1 is no UTF-8"):
        _read(path)


def test_an_empty_file_is_a_document_of_nothing_and_a_missing_one_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    assert _read(tmp_path / "empty.txt") == [Text(b"", "train")]
    with pytest.raises(MachineError, match=r"gone\.txt cannot be read: No such file"):
        _read(tmp_path / "gone.txt")


def test_prose_is_marked_as_such(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("prose")
    assert {text.split for text in read_prose([tmp_path / "p.txt"], is_utf8=True)} == {"prose"}


def test_rows_are_split_by_their_text_alone() -> None:
    texts = [b"row %d" % number for number in range(2000)]
    heldout = [text for text in texts if split_by_content(text, 20) == "heldout"]
    assert 60 < len(heldout) < 140
    assert one_document("row 7", "here", 20) == Text(b"row 7", split_by_content(b"row 7", 20))


def test_half_a_character_and_a_text_too_long_are_named_by_their_place() -> None:
    with pytest.raises(ConfigError, match=r"a\.jsonl line 3: the text holds \\ud800"):
        one_document("half \ud800", "a.jsonl line 3", 20)
    with pytest.raises(ConfigError, match=r"a\.jsonl line 3 is too long; expected at most 64 MiB"):
        one_document("x" * (MAX_DOCUMENT_BYTES + 1), "a.jsonl line 3", 20)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_bytes(b"x" * (24 * PIECE_BYTES))
    tracemalloc.start()
    for _ in read_files([Document("large", path, False)], is_utf8=False):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * PIECE_BYTES


def test_pieces_of_a_document_are_put_together_unless_it_may_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("a line of text\n" * (3 * PIECE_BYTES // 15))
    whole = list(whole_documents([Text(b"short", "heldout", place="s"), *_read(path)], lambda _: 0))
    assert [text.data for text in whole] == [b"short", path.read_bytes()]
    assert whole[0] == Text(b"short", "heldout", place="s")
    parts = list(whole_documents(_read(path), lambda text: text.rfind(b" of")))
    assert b"".join(text.data for text in parts) == path.read_bytes()
    assert len(parts) > 2
    assert all(text.data.endswith(b"line") and not text.is_last for text in parts[:-1])


def test_document_that_cannot_be_cut_and_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_DOCUMENT_BYTES", 2 * PIECE_BYTES)
    path = tmp_path / "long.txt"
    path.write_bytes(b"1" * (4 * PIECE_BYTES))
    with pytest.raises(ConfigError, match=r"long\.txt, which its tokenizer encodes whole, is too long"):
        list(whole_documents(_read(path), lambda _: 0))


def test_byte_order_mark_of_an_editor_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo")
    for is_utf8 in (True, False):
        assert b"".join(text.data for text in _read(path, is_utf8=is_utf8)) == b"one\n\xef\xbb\xbftwo"
    path.write_bytes(b"\xef\xbb\xbf")
    assert _read(path) == [Text(b"", "train")]
