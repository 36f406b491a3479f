from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from averaging.data.sources import jsonl
from averaging.data.sources.jsonl import read_jsonl
from protocol.errors import ConfigError, MachineError

ROWS = "".join(json.dumps({"text": f"row {number} größer", "id": number}) + "\n" for number in range(3000))


def _read(path: Path, field: str = "text") -> list[bytes]:
    return [text.data for text in read_jsonl([path], field, 20)]


def test_plain_and_compressed_lines_are_the_same_documents(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(ROWS)
    packed.write_bytes(gzip.compress(ROWS.encode()))
    assert _read(plain) == _read(packed) == [f"row {number} größer".encode() for number in range(3000)]
    assert {text.split for text in read_jsonl([plain], "text", 20)} == {"train", "heldout"}


def test_empty_lines_and_texts_are_passed_over_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"body": "one"}\n\n  \n{"body": ""}\n{"body": "two"}', encoding="utf8")
    assert _read(path, "body") == [b"one", b"two"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "cut of', "line 3 is no JSON"),
        (b"PAR1\x15\x04", "line 3 is no JSON"),
        (b"[" * 100_000, "line 3 is no JSON"),
        (b'{"text": "\xff"}', "line 3 is no UTF-8"),
        (b'{"text": "\\ud800"}', "line 3: the text holds"),
        (b'["text"]', "line 3 is no object"),
        (b'{"body": "b", "id": 1}', r"line 3 has no field 'text'; its fields: body, id.*set data\.field"),
        (b"{}", "line 3 has no field 'text'; its fields: none"),
        (b'{"text": null}', "line 3: field 'text' is no text"),
        (b'{"text": 5}', "line 3: field 'text' is no text"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl " + said) as caught:
        _read(path)
    assert "\n" not in caught.value.one_line()
    assert len(caught.value.one_line()) < 400 + len(str(path))


def test_a_line_without_end_is_refused_before_it_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "' + b"x" * (24 << 20)))
    tracemalloc.start()
    with pytest.raises(ConfigError, match="line 1 is too long"):
        _read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_file_that_is_cut_off_or_damaged_is_told_from_another_kind(tmp_path: Path) -> None:
    path, data = tmp_path / "a.jsonl.gz", gzip.compress(ROWS.encode())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(MachineError, match=r"a\.jsonl\.gz is cut off or damaged after line \d+.*a whole file"):
        _read(path)
    path.write_bytes(data[:-8] + bytes(8))
    with pytest.raises(MachineError, match="cut off or damaged after line 3000"):
        _read(path)
    path.write_bytes(data[:40] + b"\x00" * 40 + data[80:])
    with pytest.raises(MachineError, match="cut off or damaged"):
        _read(path)
    path.write_text(ROWS)
    with pytest.raises(ConfigError, match="is no gzip file"):
        _read(path)


def test_a_file_that_is_gone_is_said(tmp_path: Path) -> None:
    for name in ("gone.jsonl", "gone.jsonl.gz"):
        with pytest.raises(MachineError, match=f"{name} cannot be read: No such file"):
            _read(tmp_path / name)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "' + "x" * 1000 + '"}\n')
    path.write_bytes(path.read_bytes() * 10_000)
    tracemalloc.start()
    assert sum(1 for _ in read_jsonl([path], "text", 20)) == 10_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_number_of_thousands_of_digits_in_another_field_is_none_of_our_business(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": ' + b"1" * 5000 + b', "body": "one", "m": 2}\n')
    assert _read(path, "body") == [b"one"]
    for field in "nm":
        with pytest.raises(ConfigError, match=f"field '{field}' is no text"):
            _read(path, field)


def test_byte_order_mark_on_a_line_of_its_own_is_an_empty_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n{"body": "one"}\n')
    assert _read(path, "body") == [b"one"]
