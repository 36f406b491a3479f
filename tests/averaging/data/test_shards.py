from __future__ import annotations

import os
import resource
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from averaging.data.packing.packing import Packing, pack
from averaging.data.shards import (
    MANIFEST_NAME,
    DatasetManifest,
    ShardCache,
    ShardEntry,
    ShardPart,
    ShardPath,
    TextBytes,
    TokenizerEntry,
    parse_dataset,
)
from averaging.data.sources.corpus import Document
from averaging.data.sources.texts import read_files
from averaging.data.token_reader import TokenReader
from averaging.data.tokenizer import ByteTokenizer
from protocol.errors import RemoteProtocolError, StorageError
from tests.averaging.data.byte_documents import encode_document

TEXTS = {"a": b"first " * 700, "b": b"", "c": b"third\xff" * 500, "held": b"kept back " * 300}
SHARD_BYTES = 4096


def _documents(folder: Path) -> list[Document]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text)
    return [Document(name, folder / name, name == "held") for name in TEXTS]


def _packed(folder: Path) -> tuple[DatasetManifest, Path]:
    target = folder / "data"
    texts = read_files(_documents(folder / "text"), is_utf8=False)
    return pack(texts, ByteTokenizer(), target, Packing(SHARD_BYTES, "text", "none")), target


def _entry(data: bytes) -> ShardEntry:
    return ShardEntry(sha256=sha256(data).hexdigest(), num_tokens=len(data) // 2, split="train")


def test_reading_across_shards_gives_the_documents_back_in_order(tmp_path: Path) -> None:
    manifest, folder = _packed(tmp_path)
    train = manifest.part("train")
    assert len(train) > 2
    assert all(entry.num_bytes == SHARD_BYTES for entry in train[:-1])
    reader = TokenReader([folder / entry.sha256 for entry in train])
    expected = np.concatenate([encode_document(TEXTS[name]) for name in "abc"])
    assert reader.num_tokens == manifest.num_tokens("train") == len(expected)
    assert np.array_equal(reader.read(0, reader.num_tokens), expected)
    for start, length in ((0, 1), (2047, 2), (2048, 1), (1500, 3000), (len(expected) - 5, 5)):
        assert np.array_equal(reader.read(start, length), expected[start : start + length])


def test_no_held_out_token_is_in_the_training_part(tmp_path: Path) -> None:
    manifest, folder = _packed(tmp_path)
    heldout = TokenReader([folder / entry.sha256 for entry in manifest.part("heldout")])
    assert np.array_equal(heldout.read(0, heldout.num_tokens), encode_document(TEXTS["held"]))
    assert manifest.num_tokens("train") == sum(len(TEXTS[name]) + 1 for name in "abc")


def test_shards_are_named_by_their_hash_and_the_same_text_has_the_same_id(tmp_path: Path) -> None:
    manifest, folder = _packed(tmp_path / "one")
    again, _ = _packed(tmp_path / "other")
    assert manifest.dataset_id == again.dataset_id
    for entry in manifest.shards:
        data = (folder / entry.sha256).read_bytes()
        assert (sha256(data).hexdigest(), len(data)) == (entry.sha256, entry.num_bytes)
    assert not list(folder.glob("*.unfinished"))


def test_a_manifest_is_taken_only_with_the_id_that_was_asked_for(tmp_path: Path) -> None:
    manifest, folder = _packed(tmp_path)
    data = (folder / MANIFEST_NAME).read_bytes()
    assert parse_dataset(data, manifest.dataset_id) == manifest
    with pytest.raises(RemoteProtocolError, match="as the run's manifest says"):
        parse_dataset(data.replace(b'"licence":"none"', b'"licence":"nine"'), manifest.dataset_id)
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        parse_dataset(data[:-5], manifest.dataset_id)
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        parse_dataset(data.replace(manifest.shards[0].sha256.encode(), b"../" + b"0" * 61), manifest.dataset_id)


def test_the_cache_takes_only_bytes_of_the_right_hash(tmp_path: Path) -> None:
    cache, data = ShardCache(tmp_path / "cache"), bytes(100)
    assert not cache.has(_entry(data))
    assert cache.read(_entry(data).sha256) is None
    with pytest.raises(RemoteProtocolError, match="not shard"):
        cache.put(_entry(data), bytes(99) + b"x")
    assert not cache.has(_entry(data))
    cache.put(_entry(data), data)
    assert cache.has(_entry(data))
    assert cache.read(_entry(data).sha256) == data


def test_a_shard_damaged_on_disk_is_removed_and_can_be_fetched_again(tmp_path: Path) -> None:
    data = bytes(100)
    ShardCache(tmp_path).put(_entry(data), data)
    (tmp_path / _entry(data).sha256).write_bytes(data[:50])
    cache = ShardCache(tmp_path)
    assert not cache.has(_entry(data))
    assert not cache.path(_entry(data).sha256).exists()
    cache.put(_entry(data), data)
    assert cache.has(_entry(data))


def test_the_cache_stays_within_its_bound(tmp_path: Path) -> None:
    cache, small, large = ShardCache(tmp_path, max_bytes=150), bytes(100), b"x" * 100
    cache.put(_entry(small), small)
    with pytest.raises(StorageError, match="at most 150"):
        cache.put(_entry(large), large)
    assert cache.has(_entry(small))
    assert not cache.has(_entry(large))


@pytest.mark.parametrize("split", ["start", "base"])
def test_weights_of_any_size_lie_beside_the_text_and_take_none_of_its_room(tmp_path: Path, split: ShardPart) -> None:
    weights, text, more = bytes(1000), b"x" * 100, b"y" * 100
    entry = _entry(weights).model_copy(update={"split": split, "num_tokens": 500})
    cache = ShardCache(tmp_path, max_bytes=150)
    cache.put(entry, weights)
    cache.put(_entry(text), text)
    for each in (cache, ShardCache(tmp_path, max_bytes=150)):
        assert each.has(entry)
        assert each.whole(entry).read_bytes() == each.read(entry.sha256) == weights
    with pytest.raises(StorageError, match="at most 150"):
        cache.put(_entry(more), more)
    cache.path(entry.sha256).write_bytes(b"damaged")
    again = ShardCache(tmp_path, max_bytes=150)
    assert not again.has(entry)
    again.put(entry, weights)
    assert again.has(entry)


def test_weights_that_were_stored_among_the_text_are_found(tmp_path: Path) -> None:
    entry = _entry(b"old weights.").model_copy(update={"split": "base"})
    (tmp_path / entry.sha256).write_bytes(b"old weights.")
    assert ShardCache(tmp_path).has(entry)


def test_a_shard_of_wide_tokens_is_read_as_wide_tokens(tmp_path: Path) -> None:
    tokens = np.array([1, 70_000, 3], dtype=np.uint32)
    (tmp_path / "shard").write_bytes(tokens.astype("<u4").tobytes())
    reader = TokenReader([tmp_path / "shard"], 4)
    assert reader.num_tokens == 3
    assert reader.read(1, 2).tolist() == [70_000, 3]


def test_a_reader_has_more_shards_than_the_process_may_open_files(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(200)]
    for number, path in enumerate(paths):
        path.write_bytes(np.array([number, number + 1], dtype="<u2").tobytes())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(tmp_path, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 50, limits[1]))
    try:
        readers = [TokenReader(paths) for _ in range(3)]
        found = [reader.read(0, reader.num_tokens) for reader in readers]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    expected = np.repeat(np.arange(200), 2) + np.tile([0, 1], 200)
    assert all(np.array_equal(tokens, expected) for tokens in found)


def test_a_shard_that_is_cut_while_it_is_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(bytes(100))
    reader = TokenReader([path])
    path.write_bytes(bytes(50))
    assert reader.read(0, 25).tolist() == [0] * 25
    with pytest.raises(StorageError, match=f"{path} cannot be read .it ends too early"):
        reader.read(20, 10)


def test_a_shard_that_is_lost_while_it_is_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(bytes(100))
    reader = TokenReader([path])
    path.unlink()
    with pytest.raises(StorageError, match=f"{path} cannot be read .No such file"):
        reader.read(0, 10)


def test_a_reader_of_a_shard_that_is_not_there_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing cannot be read"):
        TokenReader([tmp_path / "missing"])


def test_what_a_byte_data_set_does_not_use_is_not_written(tmp_path: Path) -> None:
    manifest, _ = _packed(tmp_path)
    assert not {b"tokenizer", b"text_bytes", b"token_bytes"} & set(manifest.canonical_bytes().split(b'"'))
    assert manifest.files == tuple(manifest.shards)
    assert (manifest.token_bytes, manifest.bytes_per_token("train")) == (2, 1.0)


def test_bytes_per_token_follow_from_the_counts_of_each_part() -> None:
    shards = [
        ShardEntry(sha256="a" * 64, num_tokens=10, split="train", token_bytes=4),
        ShardEntry(sha256="b" * 64, num_tokens=20, split="heldout", token_bytes=4),
    ]
    manifest = DatasetManifest(
        source="text",
        num_documents=2,
        licence="none",
        shards=shards,
        tokenizer=TokenizerEntry(sha256="c" * 64, num_bytes=9, vocab_size=70_000, end=0),
        text_bytes=TextBytes(train=40, heldout=50),
    )
    assert [manifest.bytes_per_token(split) for split in ("train", "heldout", "prose")] == [4.0, 2.5, 1.0]
    assert [file.num_bytes for file in manifest.files] == [40, 80, 9]
    assert parse_dataset(manifest.canonical_bytes(), manifest.dataset_id) == manifest


def test_path_that_is_no_text_crosses_a_message_as_it_is() -> None:
    paths = TypeAdapter(tuple[ShardPath, ...])
    sent = (Path(os.fsdecode(b"caf\xe9/100% one")), Path("größer"))
    assert paths.validate_json(paths.dump_json(sent)) == sent
    assert paths.validate_python(sent) == sent
