from __future__ import annotations

import os
from pathlib import Path

import pytest

from averaging.data.sources.corpus import (
    is_heldout,
    matching_files,
    python_stdlib_documents,
    python_topics,
    text_documents,
)
from protocol.errors import ConfigError


def _write(folder: Path, names: list[str]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_the_standard_library_is_there_without_tests_and_tables() -> None:
    documents = python_stdlib_documents()
    names = [document.name for document in documents]
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    left_out = {"test", "tests", "encodings", "pydoc_data", "site-packages", "idlelib", "lib2to3"}
    assert not any(left_out.intersection(Path(name).parts) for name in names)
    assert all(document.path.is_file() for document in documents)


def test_about_one_file_in_twenty_is_held_out_the_same_ones_every_time() -> None:
    documents = python_stdlib_documents(heldout_every=20)
    heldout = [document.name for document in documents if document.is_heldout]
    assert 0.02 < len(heldout) / len(documents) < 0.09
    assert heldout == [d.name for d in python_stdlib_documents(heldout_every=20) if d.is_heldout]


def test_the_help_topics_are_prose_and_not_code() -> None:
    topics = python_topics()
    assert len(topics) > 50
    assert sum(map(len, topics)) > 300_000
    assert any('The "assert" statement' in topic for topic in topics)
    assert not any(topic.startswith("topics =") for topic in topics)


@pytest.mark.parametrize("source", [None, "topics = {", "topics = open('x')", "topics = ['a']"])
def test_where_there_are_no_help_topics_there_is_no_prose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    if source is not None:
        (tmp_path / "pydoc_data").mkdir()
        (tmp_path / "pydoc_data" / "topics.py").write_text(source)
    assert python_topics() == ()


def test_the_split_goes_by_name_and_not_by_place(tmp_path: Path) -> None:
    names = [f"{index}.txt" for index in range(60)]
    _write(tmp_path / "one", names)
    _write(tmp_path / "other", names)
    one = text_documents("*.txt", 4, tmp_path / "one")
    other = text_documents("*.txt", 4, tmp_path / "other")
    assert [(d.name, d.is_heldout) for d in one] == [(d.name, d.is_heldout) for d in other]


def test_a_pattern_reaches_into_folders_and_takes_files_only(tmp_path: Path) -> None:
    _write(tmp_path, ["a/b/c.txt", "d.txt", "e.md"])
    (tmp_path / "folder.txt").mkdir()
    assert [d.name for d in text_documents("**/*.txt", 20, tmp_path)] == ["a/b/c.txt", "d.txt"]


@pytest.mark.parametrize("heldout_every", [2, 1000])
def test_both_parts_have_a_file_however_few_there_are(tmp_path: Path, heldout_every: int) -> None:
    for pair in range(12):
        names = [f"{pair}-one.txt", f"{pair}-other.txt"]
        _write(tmp_path / str(pair), names)
        documents = text_documents("*.txt", heldout_every, tmp_path / str(pair))
        assert sorted(d.is_heldout for d in documents) == [False, True]


def test_a_pattern_that_matches_nothing_or_one_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.glob '\*\.txt' matches nothing below .*check the pattern"):
        text_documents("*.txt", 20, tmp_path)
    _write(tmp_path, ["only.txt"])
    with pytest.raises(ConfigError, match="matches one file"):
        text_documents("*.txt", 20, tmp_path)


def _documents(pattern: str, folder: Path) -> dict[str, bool]:
    return {document.name: document.is_heldout for document in text_documents(pattern, 2, folder)}


def test_name_that_is_no_utf8_is_a_name_like_any_other(tmp_path: Path) -> None:
    _write(tmp_path, ["a.txt", "b.txt"])
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    found = _documents("*.txt", tmp_path)
    assert sorted(map(os.fsencode, found)) == [b"a.txt", b"b.txt", b"caf\xe9.txt"]
    assert is_heldout("größer.txt", 20) == is_heldout(os.fsdecode("größer.txt".encode()), 20)


def test_file_counts_once_whatever_leads_to_it(tmp_path: Path) -> None:
    _write(tmp_path, ["corpus/one.txt", "corpus/two.txt"])
    (tmp_path / "corpus" / "again").symlink_to(".")
    (tmp_path / "corpus" / "link.txt").symlink_to("one.txt")
    (tmp_path / "corpus" / "a_hard_link.txt").hardlink_to(tmp_path / "corpus" / "two.txt")
    assert list(_documents("corpus/**/*.txt", tmp_path)) == ["corpus/a_hard_link.txt", "corpus/one.txt"]
    assert len(matching_files("corpus/**/*.txt", tmp_path)) == 2
    (tmp_path / "corpus" / "one.txt").unlink()
    with pytest.raises(ConfigError, match="matches one file, whatever its names"):
        text_documents("corpus/**/*.txt", 2, tmp_path)


def test_prose_is_not_trained_on_even_if_both_patterns_match_it(tmp_path: Path) -> None:
    _write(tmp_path, ["a.txt", "b.txt", "prose/c.txt"])
    (tmp_path / "d.txt").symlink_to("prose/c.txt")
    kept = text_documents("**/*.txt", 2, tmp_path, "prose/*.txt")
    assert [document.name for document in kept] == ["a.txt", "b.txt"]
    assert [path.name for path in matching_files("**/*.txt", tmp_path, left_out="prose/*.txt")] == ["a.txt", "b.txt"]
    with pytest.raises(ConfigError, match=r"data\.prose '\*\*/\*' matches all files of data\.glob"):
        text_documents("**/*.txt", 2, tmp_path, "**/*")


def test_an_empty_file_is_no_document_and_is_never_the_text_to_evaluate_on(tmp_path: Path) -> None:
    for name, text in (("a", "some"), ("b", "text"), ("z", "")):
        (tmp_path / f"{name}.txt").write_text(text)
    documents = text_documents("*.txt", 1_000, tmp_path)
    assert [(each.name, each.is_heldout) for each in documents] == [("a.txt", False), ("b.txt", True)]
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(ConfigError, match="matches one file that is not empty"):
        text_documents("*.txt", 1_000, tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ConfigError, match="matches no file that is not empty"):
        text_documents("*.txt", 1_000, tmp_path)
