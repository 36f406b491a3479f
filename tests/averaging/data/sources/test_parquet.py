from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from averaging.data.sources.parquet import read_parquet
from protocol.errors import ConfigError, MachineError


def _write(path: Path, columns: dict[str, object]) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=70)
    return path


def _read(path: Path, column: str = "text") -> list[bytes]:
    return [text.data for text in read_parquet([path], column, 20)]


def test_the_named_column_of_every_row_group_is_read_in_order(tmp_path: Path) -> None:
    rows = [f"row {number} größer" for number in range(200)]
    path = _write(tmp_path / "a.parquet", {"id": list(range(200)), "body": rows})
    assert _read(path, "body") == [row.encode() for row in rows]
    large = pa.array(["", "one", ""], pa.large_string())
    assert _read(_write(tmp_path / "b.parquet", {"text": large})) == [b"one"]


def test_a_column_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", {"id": [1], "body": ["b"]})
    with pytest.raises(ConfigError, match=r"a\.parquet has no column 'text'; its columns: id, body;.*set data\.field"):
        _read(path)
    with pytest.raises(ConfigError, match=r"a\.parquet: column 'id' holds int64; expected strings"):
        _read(path, "id")


def test_a_row_without_text_or_with_bytes_that_are_none_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", {"text": ["a"] * 99 + [None]})
    with pytest.raises(ConfigError, match=r"a\.parquet row 100: column 'text' is empty"):
        _read(path)
    raw = pa.array([b"fine", b"\xff"], pa.binary())
    path = _write(path, {"text": pa.Array.from_buffers(pa.string(), 2, raw.buffers())})
    with pytest.raises(ConfigError, match=r"a\.parquet row 2 is no UTF-8"):
        _read(path)


def test_a_file_that_is_cut_off_or_damaged_is_told_from_another_kind(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", {"text": [f"row {number}" for number in range(200)]})
    data = path.read_bytes()
    for damaged in (data[:-20], data[: len(data) // 2], data[:4] + b"\xff" * 200 + data[204:]):
        path.write_bytes(damaged)
        with pytest.raises(MachineError, match=r"a\.parquet is cut off or damaged after row \d+") as caught:
            _read(path)
        assert "\n" not in caught.value.one_line()
    for other in (b"", b'{"text": "json"}'):
        path.write_bytes(other)
        with pytest.raises(ConfigError, match=r"a\.parquet is no parquet file"):
            _read(path)
    with pytest.raises(MachineError, match=r"gone\.parquet cannot be read: No such file"):
        _read(tmp_path / "gone.parquet")


def test_without_pyarrow_the_command_that_installs_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match=r'pyarrow is not installed; .*pip install "potluck-train\[hf\]"'):
        _read(tmp_path / "a.parquet")


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    rows = [f"{number:04d}" * 1000 for number in range(10_000)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": rows}), path, row_group_size=10_000, compression="none", use_dictionary=False)
    before, peak = pa.total_allocated_bytes(), 0
    for _ in read_parquet([path], "text", 20):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 8 << 20 < path.stat().st_size


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["one", "two"]).dictionary_encode(),
        pa.array(["one", "two"], pa.string_view()),
        pa.array(["one", "two"], pa.large_string()).dictionary_encode(),
        pa.array([b"one", b"two"]),
        pa.array([b"one", b"two"], pa.binary(3)),
        pa.array([b"one", b"two"], pa.binary_view()),
    ],
    ids=["category", "view", "large category", "bytes", "fixed bytes", "view of bytes"],
)
def test_strings_and_bytes_of_any_kind_are_text(tmp_path: Path, values: pa.Array) -> None:
    assert _read(_write(tmp_path / "a.parquet", {"text": values})) == [b"one", b"two"]


def test_bytes_that_are_no_text_and_columns_of_lists_or_nothing_are_refused_with_what_helps(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", {"text": pa.array([b"fine", b"\xff"])})
    with pytest.raises(ConfigError, match=r"a\.parquet row 2 is no UTF-8; .*save the column as strings"):
        _read(path)
    with pytest.raises(ConfigError, match=r"holds list<.*or save this one as strings"):
        _read(_write(path, {"text": pa.array([["a"]])}))
    with pytest.raises(ConfigError, match=r"every row: column 'text' is empty"):
        _read(_write(path, {"text": pa.array([None])}))
