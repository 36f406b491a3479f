from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from pyarrow import parquet

from averaging.data.sources.sources import open_source, source_bytes
from protocol.errors import ConfigError
from protocol.run.data_section import DataSection


def test_the_standard_library_and_text_files_are_read_as_they_are(tmp_path: Path) -> None:
    assert next(open_source(DataSection(), tmp_path).texts()).data
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_bytes(name.encode() + b"\xff")
    source = open_source(DataSection(source="text", glob="*.txt"), tmp_path)
    assert b"".join(text.data for text in source.texts()) == b"a\xffb\xff"


def test_json_lines_of_several_files_are_read_in_order_and_again(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"body": name}) + "\n")
    source = open_source(DataSection(source="jsonl", glob="*.jsonl", field="body"), tmp_path)
    assert [[text.data for text in source.texts()] for _ in range(2)] == [[b"a", b"b"]] * 2


def test_rows_of_parquet_files_are_read_by_column(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"body": ["a", "b"]}), tmp_path / "a.parquet")
    source = open_source(DataSection(source="parquet", glob="*.parquet", field="body"), tmp_path)
    assert [text.data for text in source.texts()] == [b"a", b"b"]


def test_rows_of_a_saved_data_set_are_read_by_column_from_its_split(tmp_path: Path) -> None:
    splits = DatasetDict({name: Dataset(pa.table({"body": [name, "b"]})) for name in ("train", "rest")})
    splits.save_to_disk(tmp_path / "saved")
    data = DataSection(source="hf", dataset="saved", split="rest", field="body")
    source = open_source(data, tmp_path)
    assert [[text.data for text in source.texts()] for _ in range(2)] == [[b"rest", b"b"]] * 2
    (rows,) = (tmp_path / "saved" / "rest").glob("*.arrow")
    assert source_bytes(data, tmp_path) == rows.stat().st_size
    assert source_bytes(DataSection(source="hf", dataset="hf://owner/name"), tmp_path) == 0
    for early in (open_source, source_bytes):
        with pytest.raises(ConfigError, match=r"data\.dataset: no folder .*/none"):
            early(DataSection(source="hf", dataset="none"), tmp_path)


def test_prose_is_pythons_own_or_what_the_host_names_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "prose.md").write_text("Once upon a time.\n")
    rows = {"source": "jsonl", "glob": "*.jsonl"}
    assert list(open_source(DataSection(**rows), tmp_path).prose()) == []
    named = open_source(DataSection(**rows, prose="*.md"), tmp_path)
    assert b"".join(text.data for text in named.prose()) == b"Once upon a time.\n"
    assert {text.split for text in [*open_source(DataSection(), tmp_path).prose(), *named.prose()]} == {"prose"}
    with pytest.raises(ConfigError, match=r"data\.prose '\*\.txt' matches nothing below"):
        open_source(DataSection(**rows, prose="*.txt"), tmp_path)


def test_domains_are_read_in_turn_and_as_often_as_need_be(tmp_path: Path) -> None:
    data = DataSection(source="domains", domains="stubs, c++", heldout_every=5)
    source = open_source(data, tmp_path)
    texts = list(source.texts())
    assert list(source.texts()) == texts
    assert {text.split for text in texts} == {"train", "heldout"}
    assert list(source.prose()) == []
    assert 0 < sum(len(text.data) for text in texts) <= source_bytes(data, tmp_path)


def test_no_file_or_one_with_another_name_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.glob '\*' matches nothing below .*; expected at least one file"):
        open_source(DataSection(source="jsonl", glob="*"), tmp_path)
    (tmp_path / "a.csv").touch()
    with pytest.raises(ConfigError, match=r"a\.csv is not jsonl by its name; expected \.jsonl or \.jsonl\.gz"):
        open_source(DataSection(source="jsonl", glob="*"), tmp_path)


def test_length_of_all_files_is_known_without_reading_them(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.jsonl", "prose.md"):
        (tmp_path / name).write_bytes(b"x" * 100)
    assert source_bytes(DataSection(source="text", glob="*.txt"), tmp_path) == 200
    assert source_bytes(DataSection(source="text", glob="*.txt", prose="*.md"), tmp_path) == 300
    assert source_bytes(DataSection(source="jsonl", glob="*.jsonl"), tmp_path) == 100
    read = sum(len(text.data) for text in open_source(DataSection(), tmp_path).texts())
    assert source_bytes(DataSection(), tmp_path) == read
    with pytest.raises(ConfigError, match="is not parquet by its name"):
        source_bytes(DataSection(source="parquet", glob="*.txt"), tmp_path)


CHATS = [{"role": "user", "content": "é?"}, {"role": "assistant", "content": "yes"}]


def test_chats_and_completions_are_read_with_what_counts_whatever_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m.content }}|{% endfor %}{% if add_generation_prompt %}{% endif %}"
    )
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": CHATS}) + "\n\n")
    parquet.write_table(pa.table({"talk": [CHATS], "messages": ["x"]}), tmp_path / "a.parquet")
    Dataset(pa.table({"prompt": ["ab"], "completion": ["c"], "other": [1]})).save_to_disk(tmp_path / "saved")
    chat = {"format": "chat", "chat_template": "t.jinja"}
    sections = [
        DataSection(source="jsonl", glob="*.jsonl", **chat),
        DataSection(source="parquet", glob="*.parquet", field="talk", **chat),
        DataSection(source="hf", dataset="saved", format="completion"),
    ]
    found = [(text.data, text.counted) for data in sections for text in open_source(data, tmp_path).texts()]
    assert found == [("é?|yes|".encode(), ((4, 8),))] * 2 + [(b"abc", ((2, 3),))]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "a"}, "line 1 has no field 'messages'; its fields: text"),
        ({"messages": []}, "line 1 has no messages"),
        ({"messages": [{"role": "assistant", "content": 1}]}, "line 1: message 1: its content is a number"),
    ],
)
def test_a_row_that_is_no_chat_is_named(tmp_path: Path, row: dict[str, object], problem: str) -> None:
    (tmp_path / "t.jinja").write_text("x")
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    data = DataSection(source="jsonl", glob="*.jsonl", format="chat", chat_template="t.jinja")
    with pytest.raises(ConfigError, match=problem):
        list(open_source(data, tmp_path).texts())


@pytest.mark.parametrize("num_good", [1, 64, 100])
def test_the_chats_before_a_bad_row_are_read_and_the_first_bad_row_is_named(tmp_path: Path, num_good: int) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ raise_exception('no') if messages[0].content == 'no' }}"
    )
    (tmp_path / "t.jinja").write_text(template)
    good = [[{"role": "user", "content": f"{n}:"}, {"role": "assistant", "content": "yes"}] for n in range(num_good)]
    failing = [{"role": "user", "content": "no"}, {"role": "assistant", "content": "yes"}]
    rows = [*good, failing, [], *good]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    data, found = DataSection(source="jsonl", glob="*.jsonl", format="chat", chat_template="t.jinja"), list[bytes]()

    def read() -> None:
        for text in open_source(data, tmp_path).texts():
            found.append(text.data)

    with pytest.raises(ConfigError, match=rf"line {num_good + 1}: the chat template .* fails: no"):
        read()
    assert found == [f"{n}:yes".encode() for n in range(num_good)]


def test_a_mixture_reads_one_source_after_another_and_numbers_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    for name in ("b", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    kinds = [{"kind": "jsonl", "glob": "*.jsonl"}, {"kind": "text", "glob": "*.txt"}]
    data = DataSection.model_validate({"source": kinds})
    found = [(text.data, text.source) for text in open_source(data, tmp_path).texts() if text.data]
    assert found == [(b"a", 0), (b"b", 1), (b"c", 1)]
    assert source_bytes(data, tmp_path) == 16
