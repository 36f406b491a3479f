"""Text packed for experts: each holder finds its own, and the router that sent it there."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from averaging.data.packing.document_router import fit_router
from averaging.data.packing.document_routing import Routing, route_documents
from averaging.data.packing.expert_shards import check_each_expert, expert_shards, read_router
from averaging.data.packing.packing import Packing, pack
from averaging.data.shards import DatasetManifest, ShardCache, TextBytes, parse_dataset
from averaging.data.sources.texts import Text
from averaging.data.token_reader import TokenReader
from averaging.data.tokenizer import ByteTokenizer
from protocol.errors import ConfigError, RemoteProtocolError, StorageError
from tests.averaging.data.byte_documents import encode_document
from tests.averaging.data.packing.test_document_routing import CODE, PROSE

TEXTS = [
    Text(data, "heldout" if n % 8 == 7 else "train")
    for n, pair in enumerate(zip(CODE, PROSE, strict=True))
    for data in pair
] + [Text(b"Prose that nobody trains on, for the reader alone.", "prose")]
ROUTING = route_documents(lambda: TEXTS, 2)


class Halves:
    """A tokenizer with a file: two bytes of text are a token."""

    vocab_size = 300
    end = 299
    file = b"how to read them"

    def encode(self, text: bytes) -> np.ndarray:
        return np.zeros(len(text) // 2, dtype=np.uint16)


def _pack(folder: Path, routing: Routing | None = ROUTING, tokenizer: object = None) -> DatasetManifest:
    tokens = tokenizer or ByteTokenizer()
    return pack(TEXTS, tokens, folder, Packing(4096, "text", "none", routing=routing))


def _text_of(folder: Path, dataset: DatasetManifest, expert: int, split: str) -> list[int]:
    reader = TokenReader([folder / entry.sha256 for entry in expert_shards(dataset, expert, split)])
    return [int(token) for token in reader.read(0, reader.num_tokens)]


@pytest.mark.parametrize("split", ["train", "heldout", "prose"])
def test_each_experts_shards_are_its_documents_in_order_and_those_of_both_are_in_both(
    tmp_path: Path, split: str
) -> None:
    dataset = _pack(tmp_path)
    for expert in range(2):
        expected = [
            int(token)
            for text, choice in zip(TEXTS, ROUTING.choices, strict=True)
            if text.split == split and expert in choice
            for token in encode_document(text.data)
        ]
        entries = expert_shards(dataset, expert, split)
        assert (_text_of(tmp_path, dataset, expert, split) if entries else []) == expected
    assert dataset.num_documents == 80
    assert dataset.num_tokens("train") == sum(dataset.num_tokens("train", expert) for expert in range(2))


def test_a_holder_fetches_its_experts_shards_and_the_router_and_no_others(tmp_path: Path) -> None:
    dataset = _pack(tmp_path)
    assert dataset.router is not None
    names = {entry.sha256 for entry in dataset.files_of([1])}
    assert names == {entry.sha256 for entry in dataset.shards if entry.expert == 1} | {dataset.router.sha256}
    assert {entry.sha256 for entry in dataset.files_of([0, 1])} == {entry.sha256 for entry in dataset.files}
    assert all(ShardCache(tmp_path).has(entry) for entry in dataset.files)


def test_the_most_that_a_holder_of_one_or_two_experts_fetches_is_told(tmp_path: Path) -> None:
    dataset = _pack(tmp_path / "a")
    of_each = [sum(file.num_bytes for file in dataset.files_of([expert])) for expert in range(2)]
    assert dataset.most_bytes(1) == max(of_each)
    whole = sum(file.num_bytes for file in dataset.files)
    assert max(of_each) < dataset.most_bytes(2) == whole
    plain = _pack(tmp_path / "b", None)
    assert plain.most_bytes(0) == plain.most_bytes(1) == sum(file.num_bytes for file in plain.files)


def test_the_router_travels_as_a_file_of_the_data_set_and_another_is_refused(tmp_path: Path) -> None:
    dataset, cache = _pack(tmp_path), ShardCache(tmp_path)
    assert read_router(dataset, 2, cache).to_bytes() == ROUTING.router.to_bytes()
    with pytest.raises(ConfigError, match='"experts": 3'):
        read_router(dataset, 3, cache)
    assert dataset.router is not None
    other = fit_router(CODE, 2).to_bytes()
    path = tmp_path / dataset.router.sha256
    path.write_bytes(other)
    with pytest.raises(ConfigError, match="as the manifest says"):
        read_router(dataset, 2, cache)
    path.unlink()
    with pytest.raises(StorageError, match="is not in"):
        read_router(dataset, 2, cache)


def test_an_expert_out_of_range_and_a_data_set_without_experts_are_refused(tmp_path: Path) -> None:
    dataset = _pack(tmp_path / "a")
    for expert in (-1, 2):
        with pytest.raises(ConfigError, match=f"data for expert {expert}; expected 0 to 1"):
            expert_shards(dataset, expert)
    plain = _pack(tmp_path / "b", None)
    with pytest.raises(ConfigError, match="packed for no experts"):
        expert_shards(plain, 0)
    with pytest.raises(ConfigError, match="without a router"):
        read_router(plain, 2, ShardCache(tmp_path / "b"))
    assert plain.files_of([0]) == plain.files


def test_the_shares_of_experts_in_what_is_kept_for_evaluation_are_by_bytes_of_text(tmp_path: Path) -> None:
    dataset = _pack(tmp_path / "a", ROUTING, Halves())
    sizes = [
        sum(
            len(t.data) + 1
            for t, choice in zip(TEXTS, ROUTING.choices, strict=True)
            if t.split == "heldout" and e in choice
        )
        for e in range(2)
    ]
    assert dataset.heldout_shares == pytest.approx([size / sum(sizes) for size in sizes])
    assert _pack(tmp_path / "b", None).heldout_shares == ()


def test_the_shares_of_experts_are_by_what_counts_where_only_some_tokens_do(tmp_path: Path) -> None:
    dataset = _pack(tmp_path, ROUTING, Halves())
    assert dataset.router is not None
    entries = [
        entry.model_copy(update={"num_counted": entry.num_tokens // (10 if entry.expert else 2)})
        for entry in dataset.shards
    ]
    text_bytes = [TextBytes(train=400, heldout=size) for size in (300, 100)]
    router = dataset.router.model_copy(update={"text_bytes": text_bytes})
    counted = dataset.model_copy(update={"shards": entries, "router": router})
    assert counted.heldout_shares == pytest.approx((0.75, 0.25)), "the bytes of what counts"
    none = [entry.model_copy(update={"num_counted": 0}) for entry in entries]
    assert counted.model_copy(update={"shards": none}).heldout_shares == (0.0, 0.0)


def test_losses_per_byte_are_told_for_each_expert_by_its_own_text(tmp_path: Path) -> None:
    dataset = _pack(tmp_path, ROUTING, Halves())
    for expert in range(2):
        own = [t for t, choice in zip(TEXTS, ROUTING.choices, strict=True) if t.split == "train" and expert in choice]
        num_bytes, num_tokens = sum(len(t.data) + 1 for t in own), sum(len(t.data) // 2 + 1 for t in own)
        assert dataset.bytes_per_token("train", expert) == num_bytes / num_tokens
    assert _pack(tmp_path / "bytes").bytes_per_token("train", 1) == 1.0


def test_a_manifest_comes_back_and_one_whose_shards_and_router_disagree_is_refused(tmp_path: Path) -> None:
    dataset = _pack(tmp_path)
    assert parse_dataset(dataset.canonical_bytes(), dataset.dataset_id) == dataset
    router = dataset.router
    assert router is not None
    for changes in ({"router": None}, {"router": router.model_copy(update={"num_experts": 1})}):
        odd = dataset.model_copy(update=changes)
        with pytest.raises(RemoteProtocolError, match="cannot be read"):
            parse_dataset(odd.canonical_bytes(), odd.dataset_id)


def test_text_that_changed_since_it_was_routed_leaves_no_data_set(tmp_path: Path) -> None:
    for choices in (ROUTING.choices[:-1], (*ROUTING.choices, (0,))):
        with pytest.raises(ConfigError, match="the same text each time it is read"):
            _pack(tmp_path, replace(ROUTING, choices=choices))
    assert not (tmp_path / "dataset.json").exists()


def test_an_expert_without_documents_to_measure_on_is_one_clear_line(tmp_path: Path) -> None:
    everything_to_one = [
        (1,) if text.split == "heldout" else choice for text, choice in zip(TEXTS, ROUTING.choices, strict=True)
    ]
    with pytest.raises(ConfigError, match="0 kept for evaluation for expert 0"):
        _pack(tmp_path, replace(ROUTING, choices=everything_to_one))


def test_an_expert_with_less_than_a_window_is_one_clear_line(tmp_path: Path) -> None:
    dataset = _pack(tmp_path)
    least = min(dataset.num_tokens("heldout", expert) for expert in range(2))
    check_each_expert(dataset, least)
    check_each_expert(_pack(tmp_path / "plain", None), 1 << 40)
    with pytest.raises(
        ConfigError, match=rf"the held-out text of expert \d has {least} tokens; expected at least {least + 1}"
    ):
        check_each_expert(dataset, least + 1)


def test_the_same_text_is_packed_the_same(tmp_path: Path) -> None:
    assert _pack(tmp_path / "a").dataset_id == _pack(tmp_path / "b").dataset_id
    assert sha256(_pack(tmp_path / "a").canonical_bytes()) != sha256(_pack(tmp_path / "b", None).canonical_bytes())
