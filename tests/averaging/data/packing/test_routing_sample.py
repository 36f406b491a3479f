"""The documents on which experts are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from averaging.data.packing.document_routing import route_documents
from averaging.data.packing.packing import Packing, pack
from averaging.data.packing.routing_sample import routing_sample, window_tokens
from averaging.data.shards import TokenReader, parse_dataset
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import ByteTokenizer
from protocol.errors import ConfigError, RemoteProtocolError
from tests.averaging.data.packing.test_document_routing import CODE, PROSE

TEXTS = [
    Text(data, "heldout" if n % 8 == 7 else "train")
    for n, pair in enumerate(zip(CODE, PROSE, strict=True))
    for data in pair
]


def test_the_same_training_documents_are_taken_in_whatever_order_they_come() -> None:
    sample = routing_sample(lambda: TEXTS, ByteTokenizer(), 33, 10)
    turned = routing_sample(lambda: TEXTS[::-1], ByteTokenizer(), 33, 10)
    assert sample.prefixes == turned.prefixes
    assert len(sample.prefixes) == len(set(sample.prefixes)) == 10
    assert {text.data for text in TEXTS if text.split == "train"} >= set(sample.prefixes)
    assert [bytes(window.astype("u1")) for window in sample.windows] == [text[:33] for text in sample.prefixes]


def test_short_documents_and_copies_are_passed_over_and_two_at_least_are_needed() -> None:
    long, other, short = b"a long document " * 8, b"another of the kind " * 8, b"short"
    texts = [Text(data, "train") for data in (short, long, long, other)]
    assert sorted(routing_sample(lambda: texts, ByteTokenizer(), 33).prefixes) == sorted({long, other})
    with pytest.raises(ConfigError, match=r"1 documents to train on that begin with 33 tokens.*reassign_every_rounds"):
        routing_sample(lambda: texts[:3], ByteTokenizer(), 33)


def test_a_window_is_the_models_context_and_no_longer_than_it_need_be() -> None:
    assert [window_tokens(context) for context in (32, 256, 4096)] == [33, 257, 257]


def test_a_data_set_has_its_sample_for_every_holder_and_without_one_keeps_its_id(tmp_path: Path) -> None:
    sample = routing_sample(lambda: TEXTS, ByteTokenizer(), 33, 10)
    routing = route_documents(lambda: TEXTS, 2)
    packing = Packing(4096, "text", "none", routing=routing)
    dataset = pack(TEXTS, ByteTokenizer(), tmp_path / "with", replace(packing, sample=sample))
    plain = pack(TEXTS, ByteTokenizer(), tmp_path / "plain", packing)
    assert (dataset.sample_windows, plain.sample_windows) == (10, 0)
    (entry,) = dataset.part("sample")
    assert all(entry in dataset.files_of([expert]) for expert in range(2))
    reader = TokenReader([tmp_path / "with" / entry.sha256])
    assert list(reader.read(33, 33)) == list(sample.windows[1])
    assert b"sample" not in plain.canonical_bytes()
    assert parse_dataset(dataset.canonical_bytes(), dataset.dataset_id) == dataset
    assert dataset.num_tokens("train") == plain.num_tokens("train")


@pytest.mark.parametrize("owners", [[0] * 9, [0] * 9 + [2], [0] * 9 + [-1]])
def test_owners_that_are_not_of_each_window_or_of_no_expert_are_no_data_set(tmp_path: Path, owners: list[int]) -> None:
    sample = routing_sample(lambda: TEXTS, ByteTokenizer(), 33, 10)
    packing = Packing(4096, "text", "none", routing=route_documents(lambda: TEXTS, 2))
    fine = [0, 1] * 5
    dataset = pack(TEXTS, ByteTokenizer(), tmp_path, replace(packing, sample=replace(sample, owners=fine)))
    assert parse_dataset(dataset.canonical_bytes(), dataset.dataset_id).sample_owners == tuple(fine)
    told = json.dumps(fine, separators=(",", ":")).encode()
    other = dataset.canonical_bytes().replace(told, json.dumps(owners, separators=(",", ":")).encode())
    assert other != dataset.canonical_bytes()
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        parse_dataset(other, dataset.dataset_id)


def test_a_sample_that_is_not_whole_windows_is_no_data_set(tmp_path: Path) -> None:
    sample = routing_sample(lambda: TEXTS, ByteTokenizer(), 33, 10)
    routing = route_documents(lambda: TEXTS, 2)
    dataset = pack(TEXTS, ByteTokenizer(), tmp_path, Packing(4096, "text", "none", routing=routing, sample=sample))
    torn = dataset.canonical_bytes().replace(b'"num_tokens":330', b'"num_tokens":329')
    assert torn != dataset.canonical_bytes()
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        parse_dataset(torn, dataset.dataset_id)
