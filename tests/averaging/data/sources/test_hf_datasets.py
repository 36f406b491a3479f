from __future__ import annotations

import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError

from averaging.data.sources.hf_datasets import HubDataset, SavedDataset, read_dataset
from protocol.errors import ConfigError, MachineError, PotluckError, UnreachableError

ROWS = [f"row {number} größer" for number in range(200)]
HUB = HubDataset("owner/name", "", "train")


def _save(folder: Path, columns: dict[str, object], shards: int = 1) -> Path:
    Dataset(pa.table(columns)).save_to_disk(folder, num_shards=shards)
    return folder


def _read(place: Path | HubDataset, column: str = "text", split: str = "train") -> list[bytes]:
    named = SavedDataset(place, split) if isinstance(place, Path) else place
    return [text.data for text in read_dataset(named, column, 20)]


def _raised(kind: type[PotluckError], place: Path | HubDataset, column: str = "text") -> str:
    with pytest.raises(kind) as caught:
        _read(place, column)
    assert type(caught.value) is kind
    return caught.value.one_line()


def test_the_named_column_of_a_saved_data_set_is_read_in_order_over_all_its_files(tmp_path: Path) -> None:
    folder = _save(tmp_path / "a", {"id": list(range(200)), "body": ROWS}, shards=3)
    assert len(list(folder.glob("*.arrow"))) == 3
    assert _read(folder, "body") == [row.encode() for row in ROWS]
    large = pa.array(["", "one", ""], pa.large_string())
    assert _read(_save(tmp_path / "b", {"text": large})) == [b"one"]


def test_rows_that_were_chosen_and_shuffled_are_read_as_they_were_saved(tmp_path: Path) -> None:
    chosen = Dataset(pa.table({"text": ROWS})).select([5, 3, 3, 199])
    chosen.save_to_disk(tmp_path / "a")
    assert _read(tmp_path / "a") == [ROWS[number].encode() for number in (5, 3, 3, 199)]


def test_one_split_of_several_is_read(tmp_path: Path) -> None:
    splits = DatasetDict({"train": Dataset(pa.table({"text": ["a"]})), "rest": Dataset(pa.table({"text": ["b"]}))})
    splits.save_to_disk(tmp_path / "a")
    assert (_read(tmp_path / "a"), _read(tmp_path / "a", split="rest")) == ([b"a"], [b"b"])
    with pytest.raises(ConfigError, match=r"has no split 'test'; its splits: train, rest;.*set data\.split"):
        _read(tmp_path / "a", split="test")


@pytest.mark.parametrize(
    ("rows", "begin", "stop"),
    [
        ("[:1%]", 0, 2),
        ("[10%:20%]", 20, 40),
        ("[-50%:]", 100, 200),
        ("[5:8]", 5, 8),
        ("[-3:]", 197, 200),
        ("[:]", 0, 200),
        ("[190:500]", 190, 200),
    ],
)
def test_a_part_of_a_split_is_its_rows_as_the_library_counts_them(
    tmp_path: Path, rows: str, begin: int, stop: int
) -> None:
    DatasetDict({"tr-1": Dataset(pa.table({"text": ROWS}))}).save_to_disk(tmp_path / "a")
    own = _save(tmp_path / "b", {"text": ROWS})
    expected = [row.encode() for row in ROWS[begin:stop]]
    assert _read(tmp_path / "a", split="tr-1" + rows) == _read(own, split="train" + rows) == expected
    assert (
        SavedDataset(tmp_path / "a", "tr-1" + rows).num_bytes() == SavedDataset(tmp_path / "a", "tr-1").num_bytes() > 0
    )


@pytest.mark.parametrize("rows", ["[:200%]", "[300:]", "[7:3]", "[:0]", "[50%:-60%]"])
def test_rows_that_a_split_does_not_have_are_told_in_a_line(tmp_path: Path, rows: str) -> None:
    folder = _save(tmp_path / "a", {"text": ROWS})
    with pytest.raises(ConfigError, match=r"has no rows 'train\[.*it has 200; expected .*train\[:1%\]"):
        _read(folder, split="train" + rows)


def test_a_folder_that_is_missing_or_of_another_kind_is_named(tmp_path: Path) -> None:
    assert f"no folder {tmp_path / 'none'}" in _raised(ConfigError, tmp_path / "none")
    (tmp_path / "readme.txt").write_text("hello")
    assert "was not written by save_to_disk" in _raised(ConfigError, tmp_path)


def test_a_device_among_the_files_of_a_saved_data_set_is_named(tmp_path: Path) -> None:
    folder = _save(tmp_path / "a", {"text": ["one", "two"]})
    (rows,) = folder.glob("*.arrow")
    rows.unlink()
    rows.symlink_to("/dev/null")
    assert f"{rows} is a device" in _raised(ConfigError, folder)


def test_a_column_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    folder = _save(tmp_path / "a", {"id": [1], "body": ["b"]})
    assert "a has no column 'text'; its columns: id, body" in _raised(ConfigError, folder)
    assert "a: column 'id' holds int64; expected strings" in _raised(ConfigError, folder, "id")


def test_a_row_without_text_is_named(tmp_path: Path) -> None:
    folder = _save(tmp_path / "a", {"text": ["a"] * 99 + [None]})
    assert "a row 100: column 'text' is empty" in _raised(ConfigError, folder)


def test_a_data_set_without_rows_is_no_document(tmp_path: Path) -> None:
    assert _read(_save(tmp_path / "a", {"text": pa.array([], pa.string())})) == []


def test_data_set_saved_without_any_file_of_rows_is_empty_and_not_damaged(tmp_path: Path) -> None:
    empty, full = (Dataset(pa.table({"text": pa.array(rows, pa.string())})) for rows in ([], ["a"]))
    empty.save_to_disk(tmp_path / "a")
    assert f"{tmp_path / 'a'} has no rows; expected some text; take another" in _raised(ConfigError, tmp_path / "a")
    DatasetDict({"train": full, "rest": empty}).save_to_disk(tmp_path / "b")
    assert _read(tmp_path / "b") == [b"a"]


@pytest.mark.parametrize(
    "values", [pa.array(["a", "b"], pa.string_view()), pa.array([b"a", b"b"])], ids=["view", "bytes"]
)
def test_strings_of_any_kind_are_text(tmp_path: Path, values: pa.Array) -> None:
    assert _read(_save(tmp_path / "a", {"text": values})) == [b"a", b"b"]


def test_files_that_are_cut_off_or_damaged_are_one_line(tmp_path: Path) -> None:
    folder = _save(tmp_path / "a", {"text": ROWS})
    (arrow,) = folder.glob("*.arrow")
    whole = arrow.read_bytes()
    offsets = pa.array(ROWS).buffers()[1].to_pybytes()[:32]
    place = whole.index(offsets)
    damaged = (b"", whole[: len(whole) // 2], whole[:place] + b"\x7f" * 32 + whole[place + 32 :])
    for data in damaged:
        arrow.unlink()  # in its place: a mapping of the file would see what is written into it
        arrow.write_bytes(data)
        assert "is cut off or damaged" in _raised(MachineError, folder)
    arrow.unlink()
    assert "is cut off or damaged" in _raised(MachineError, folder)
    for state in ("", "{}", "[]", '{"_data_files": 3}'):
        (folder / "state.json").write_text(state)
        assert "is cut off or damaged" in _raised(MachineError, folder)


def test_without_the_library_the_command_that_installs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for place in (tmp_path, HUB):
        line = _raised(MachineError, place)
        assert line.startswith("datasets is not installed; ")
        assert 'pip install "potluck-train[hf]"' in line


def test_a_release_that_may_run_what_comes_with_a_data_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    for place in (tmp_path, HUB):
        assert "datasets 3.6.0 is installed" in _raised(MachineError, place)


def test_a_data_set_of_the_hub_is_fetched_whole_and_no_code_of_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def load_dataset(*arguments: object, **options: object) -> Dataset:
        asked.append((*arguments, options))
        return Dataset(pa.table({"text": ["a", "b"]}))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert _read(HUB) == [b"a", b"b"]
    assert _read(HubDataset("owner/name", "small", "test")) == [b"a", b"b"]
    assert asked == [
        ("owner/name", None, {"split": "train", "streaming": False}),
        ("owner/name", "small", {"split": "test", "streaming": False}),
    ]


@pytest.mark.parametrize(
    ("error", "kind", "found"),
    [
        (DatasetNotFoundError("Dataset 'owner/name' doesn't exist"), ConfigError, "owner/name is not on the Hub"),
        (ConnectionError("Couldn't reach it\nfor long"), UnreachableError, "Couldn't reach it;"),
        (ValueError('Unknown split "train". Should be one of'), ConfigError, 'Unknown split "train"'),
        (datasets.exceptions.DatasetGenerationError("broken"), MachineError, "cannot be fetched (broken)"),
        (OSError(28, "No space left on device"), MachineError, "No space left on device"),
    ],
    ids=["not there", "no network", "no such split", "damaged", "full disk"],
)
def test_what_goes_wrong_at_the_hub_is_one_line_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[PotluckError], found: str
) -> None:
    def load_dataset(*_arguments: object, **_options: object) -> Dataset:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert found in _raised(kind, HUB)


def test_the_library_itself_says_so_where_it_may_not_reach_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    assert "owner/name" in _raised(UnreachableError, HUB)
