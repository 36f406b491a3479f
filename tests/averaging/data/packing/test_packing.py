from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from averaging.data.assignment import SourceSpan
from averaging.data.packing.packing import Packing, pack, token_bytes
from averaging.data.shards import MANIFEST_NAME, DatasetManifest
from averaging.data.sources.corpus import Document, text_documents
from averaging.data.sources.texts import Split, Text, read_files
from averaging.data.token_reader import TokenReader
from averaging.data.tokenizer import ByteTokenizer, EncodingError
from protocol.errors import ConfigError, MachineError, StorageError


class Wide:
    """A tokenizer whose vocabulary needs four bytes: two bytes of text are a token."""

    vocab_size = 70_000
    end = 69_999
    file = b"how to read them"

    def encode(self, text: bytes) -> np.ndarray:
        return np.full(len(text) // 2, 65_536, dtype=np.uint32)


def _pack(texts: list[Text], folder: Path, tokenizer: object = None, **changes: object) -> DatasetManifest:
    numbers = {"shard_bytes": 4096, "source": "text", "licence": "none", **changes}
    return pack(texts, tokenizer or ByteTokenizer(), folder, Packing(**numbers))


def test_text_packed_by_earlier_releases_has_the_same_id(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for n in range(6):
        text = bytes(range(256)) * 10 + f"text number {n}, ".encode() * 300
        (tmp_path / "t" / f"{n}.txt").write_bytes(text)
    texts = read_files(text_documents("t/*.txt", 3, tmp_path), is_utf8=False)
    manifest = pack(texts, ByteTokenizer(), tmp_path / "d", Packing(4096, "text", "as the host says"))
    assert manifest.dataset_id == "77e6c8abd57a2995bc49c939303a12f0a5ca911aa7f09b64082182167cf3aaa6"


def test_parts_that_come_mixed_are_packed_apart_and_training_first(tmp_path: Path) -> None:
    parts: list[Split] = ["heldout", "train", "prose", "train", "heldout"]
    manifest = _pack([Text(b"%d" % i, part) for i, part in enumerate(parts)], tmp_path)
    assert [entry.split for entry in manifest.shards] == ["train", "heldout", "prose"]
    assert manifest.num_documents == 4
    reader = TokenReader([tmp_path / entry.sha256 for entry in manifest.part("heldout")])
    assert reader.read(0, 4).tolist() == [ord("0"), 256, ord("4"), 256]


def test_pieces_of_a_document_have_one_end_mark_between_them(tmp_path: Path) -> None:
    texts = [Text(b"a", "train", is_last=False), Text(b"b", "train"), Text(b"c", "heldout")]
    assert _pack(texts, tmp_path).num_tokens("train") == 3


def test_a_large_vocabulary_is_stored_in_four_bytes_and_bytes_are_counted(tmp_path: Path) -> None:
    manifest = _pack([Text(b"abcd", "train"), Text(b"ab", "heldout")], tmp_path, Wide())
    reader = TokenReader([tmp_path / entry.sha256 for entry in manifest.part("train")], manifest.token_bytes)
    assert reader.read(0, 3).tolist() == [65_536, 65_536, 69_999]
    assert manifest.bytes_per_token("train") == 5 / 3
    assert manifest.tokenizer is not None
    assert (tmp_path / manifest.tokenizer.sha256).read_bytes() == Wide.file
    assert [token_bytes(size) for size in (257, 65_536, 65_537)] == [2, 2, 4]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), Wide()])
def test_weights_to_start_with_are_the_last_shards_of_whole_values_whatever_a_token_takes(
    tmp_path: Path, tokenizer: object
) -> None:
    values = np.arange(2500, dtype="<f4")
    texts = [Text(b"abcd", "train"), Text(b"ab", "heldout")]
    manifest = _pack(texts, tmp_path, tokenizer, shard_bytes=4098, start=memoryview(values.tobytes()))
    parts = manifest.part("start")
    assert list(manifest.shards[-3:]) == list(parts)
    assert [entry.num_bytes for entry in parts] == [4096, 4096, 1808]
    assert b"".join((tmp_path / entry.sha256).read_bytes() for entry in parts) == values.tobytes()
    assert manifest.token_bytes == token_bytes(tokenizer.vocab_size)


def test_every_piece_is_shown_as_it_goes_by(tmp_path: Path) -> None:
    texts, seen = [Text(b"a", "train"), Text(b"b", "heldout")], []
    pack(texts, ByteTokenizer(), tmp_path, Packing(4096, "text", "none"), seen.append)
    assert seen == texts


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "no text in it"),
        ([Text(b"a", "prose")], "no text in it"),
        ([Text(b"a", "train")], "1 documents to train on and 0 kept"),
        ([Text(b"a", "heldout")], "0 documents to train on and 1 kept"),
    ],
)
def test_a_part_without_documents_is_one_clear_line(tmp_path: Path, texts: list[Text], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _pack(texts, tmp_path)
    assert not (tmp_path / MANIFEST_NAME).exists()


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    gone = read_files([Document("c", tmp_path / "c", False)], is_utf8=False)
    with pytest.raises(MachineError, match="c cannot be read"):
        pack(gone, ByteTokenizer(), tmp_path / "data", Packing(4096, "text", "none"))
    assert not (tmp_path / "data" / MANIFEST_NAME).exists()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        _pack([Text(b"a", "train"), Text(b"a", "heldout")], tmp_path / "file" / "data")


def test_text_without_a_token_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    class Narrow(Wide):
        def encode(self, text: bytes) -> np.ndarray:
            if b"?" in text:
                raise EncodingError("it has no token for '?'", 1 + text[: text.index(b"?")].count(b"\n"))
            return super().encode(text)

    texts = [Text(b"one\ntwo\n", "train", is_last=False, place="a.txt"), Text(b"three\n?", "train", place="a.txt")]
    with pytest.raises(ConfigError, match=r"data: a\.txt line 4: it has no token for '\?'"):
        _pack([Text(b"a\n", "train"), *texts], tmp_path, Narrow())


def test_what_counts_and_where_documents_begin_is_part_of_the_shard_and_of_its_hash(tmp_path: Path) -> None:
    texts = [Text(b"abcd", "train", counted=((1, 3),)), Text(b"ef", "train", counted=((0, 2),))]
    texts.append(Text(b"gh", "heldout", counted=((1, 2),)))
    manifest = _pack(texts, tmp_path / "a", has_counts=True, has_starts=True)
    entry = manifest.part("train")[0]
    assert (entry.num_tokens, entry.num_counted, entry.has_starts) == (8, 5, True)
    assert (tmp_path / "a" / entry.sha256).stat().st_size == entry.num_bytes == 18
    reader = TokenReader([tmp_path / "a" / entry.sha256], has_counts=True, has_starts=True)
    assert reader.counted(0, 8).tolist() == [False, True, True, False, False, True, True, True], "the end of an answer"
    assert np.flatnonzero(reader.begins(0, 8)).tolist() == [0, 5]
    assert manifest.bytes_per_token("train") == 1.0, "of what counts"
    other = _pack([replace(texts[0], counted=((1, 4),)), *texts[1:]], tmp_path / "b", has_counts=True, has_starts=True)
    assert other.part("train")[0].sha256 != entry.sha256
    assert DatasetManifest.model_validate_json(manifest.canonical_bytes()) == manifest


def test_marked_documents_go_on_over_the_ends_of_shards(tmp_path: Path) -> None:
    texts = [Text(b"x" * length, "train", counted=((0, length),)) for length in (4000, 5000, 90)]
    texts.append(Text(b"y", "heldout", counted=((0, 1),)))
    manifest = _pack(texts, tmp_path, has_counts=True, has_starts=True)
    entries = manifest.part("train")
    assert len(entries) > 4
    assert all(entry.num_bytes <= 4096 for entry in entries)
    reader = TokenReader([tmp_path / entry.sha256 for entry in entries], has_counts=True, has_starts=True)
    assert np.flatnonzero(reader.begins(0, reader.num_tokens)).tolist() == [0, 4001, 9002]
    assert reader.counted(0, reader.num_tokens).all()


@pytest.mark.parametrize("spans", [((0, 3),), ((1, 1),), ((1, 2), (0, 1)), ((-1, 1),)])
def test_a_mask_that_is_no_part_of_its_text_is_refused(tmp_path: Path, spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match=r"line 7: a mask from .* in a text of 2 bytes"):
        _pack([Text(b"ab", "train", place="line 7", counted=spans)], tmp_path, has_counts=True)


def test_sources_of_a_mixture_have_shards_of_their_own_one_after_another(tmp_path: Path) -> None:
    texts = [Text(b"ab", "train"), Text(b"c", "heldout"), Text(b"defg", "train", source=1)]
    texts.append(Text(b"h", "heldout", source=1))
    manifest = _pack(texts, tmp_path, source_names=("one", "two"))
    assert [(entry.split, entry.source) for entry in manifest.shards] == [
        ("train", 0),
        ("train", 1),
        ("heldout", 0),
        ("heldout", 1),
    ]
    assert manifest.source_spans("train", (2.0, 1.0)) == (SourceSpan(0, 3, 2.0), SourceSpan(3, 8, 1.0))
    assert DatasetManifest.model_validate_json(manifest.canonical_bytes()) == manifest
    with pytest.raises(ConfigError, match=r"0 documents to train on and 0 kept for evaluation of source 2"):
        _pack(texts[:2], tmp_path, source_names=("one", "two"))


def test_bytes_per_token_of_a_mixture_are_those_of_what_is_read(tmp_path: Path) -> None:
    texts = [Text(b"abcdef", "train"), Text(b"a", "heldout"), Text(b"abcd", "train", source=1)]
    texts.append(Text(b"ab", "heldout", source=1))
    manifest = _pack(texts, tmp_path, Wide(), source_names=("one", "two"))
    # 7 bytes in 4 tokens, and 5 bytes in 3
    assert manifest.mixed_bytes_per_token("train", (3.0, 1.0)) == pytest.approx(0.75 * 7 / 4 + 0.25 * 5 / 3)
    assert manifest.mixed_bytes_per_token("prose", (3.0, 1.0)) == 1.0
