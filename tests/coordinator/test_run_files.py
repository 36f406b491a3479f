"""The host's folder."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from averaging.data.shards import ShardCache
from coordinator import run_files
from coordinator.run_files import load_run, open_run, run_tokenizer, start_units
from protocol.envelope import NEVER_MS, seal
from protocol.errors import ConfigError, PotluckError, RemoteProtocolError, StorageError, VersionError
from protocol.identity import Identity
from protocol.manifest import MANIFEST_DOMAIN
from tests.coordinator.chain_world import Chain

HOST = Identity(b"h" * 32)
RUN_TOML = """
[run]
name = "tiny"
total_tokens = 1000
[model]
dim = 8
num_layers = 1
num_heads = 2
num_kv_heads = 1
ffn_dim = 8
context_tokens = 8
[data]
source = "text"
glob = "texts/*.txt"
shard_bytes = 4096
[inner]
learning_rate = 0.01
batch_tokens = 64
[round]
target_tokens = 300
chunk_elements = 256
"""


def write_run_file(folder: Path) -> Path:
    (folder / "texts").mkdir()
    for number in range(6):
        (folder / "texts" / f"{number}.txt").write_text(f"text number {number}, " * 300)
    path = folder / "run.toml"
    path.write_text(RUN_TOML)
    return path


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return write_run_file(tmp_path)


def test_first_opening_packs_signs_and_keeps_secrets_to_the_owner(run_file: Path, tmp_path: Path) -> None:
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert run.was_created
    assert run.manifest.dataset_id == run.dataset.dataset_id
    assert run.manifest.dataset_tokens == run.dataset.num_tokens("train")
    assert run.manifest.ca_certificate_sha256 == sha256(run.authority.certificate_der).hexdigest()
    assert 0 < run.manifest.pairs_nats_per_byte < 5.6
    assert (tmp_path / "state" / "authority.key").stat().st_mode & 0o077 == 0
    cache = ShardCache(tmp_path / "state" / "data")
    assert all(cache.has(entry) for entry in run.dataset.shards)


def test_second_opening_finds_the_same_run(run_file: Path, tmp_path: Path) -> None:
    first = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    second = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_800_000_000.0)
    assert not second.was_created
    assert second.signed_manifest == first.signed_manifest
    assert second.authority.certificate_der == first.authority.certificate_der


def test_changed_run_file_names_the_key(run_file: Path, tmp_path: Path) -> None:
    open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    run_file.write_text(RUN_TOML.replace("learning_rate = 0.01", "learning_rate = 0.02"))
    with pytest.raises(ConfigError, match=r"inner\.learning_rate differs"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)


def test_crash_before_the_manifest_begins_anew(run_file: Path, tmp_path: Path) -> None:
    open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    (tmp_path / "state" / "manifest.signed").unlink()
    assert open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0).was_created


@pytest.mark.parametrize("name", ["manifest.signed", "authority.key", "data/dataset.json"])
def test_damaged_folder_is_one_clear_error(run_file: Path, tmp_path: Path, name: str) -> None:
    open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    (tmp_path / "state" / name).write_bytes(b"x")
    with pytest.raises(StorageError, match="damaged"):
        load_run(tmp_path / "state")


def test_run_of_another_release_is_not_called_damaged(run_file: Path, tmp_path: Path) -> None:
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    values = {**json.loads(run.manifest.canonical_bytes()), "colour": "blue"}
    sealed = seal(HOST, MANIFEST_DOMAIN, bytes(32), 0, NEVER_MS, json.dumps(values).encode())
    (tmp_path / "state" / "manifest.signed").write_bytes(sealed)
    with pytest.raises(VersionError, match="colour is not a known key"):
        load_run(tmp_path / "state")


def test_folder_without_a_run_and_glob_without_files_are_named(run_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run in"):
        load_run(tmp_path / "nothing")
    run_file.write_text(RUN_TOML.replace("texts/*.txt", "nowhere/*.txt"))
    with pytest.raises(ConfigError, match="matches nothing"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)


@pytest.mark.parametrize("text", ["", "short"])
def test_text_without_one_window_is_refused_with_the_numbers(run_file: Path, tmp_path: Path, text: str) -> None:
    for path in (tmp_path / "texts").iterdir():
        path.write_text(text)
    path.write_text("long enough to hold a window, " * 9)
    with pytest.raises(ConfigError, match=r"text has \d+ tokens; expected at least 9"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)


JSONL_TOML = RUN_TOML.replace('"text"', '"jsonl"').replace("texts/*.txt", "rows.jsonl")


def test_json_lines_are_packed_and_the_run_found_again(run_file: Path, tmp_path: Path) -> None:
    run_file.write_text(JSONL_TOML)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "row {n} of many"}}\n' for n in range(200)))
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert run.dataset.num_documents == 200
    assert (
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0).signed_manifest == run.signed_manifest
    )


@pytest.mark.parametrize(
    ("rows", "exit_code"),
    [("", 3), ('{"text": "a"}\n' * 200, 3), ('{"text": "fine"}\n' * 2000 + '{"text": "cut o', 3)],
)
def test_data_that_cannot_be_packed_leaves_nothing_behind(
    run_file: Path, tmp_path: Path, rows: str, exit_code: int
) -> None:
    run_file.write_text(JSONL_TOML)
    (tmp_path / "rows.jsonl").write_text(rows)
    with pytest.raises(PotluckError) as caught:
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert caught.value.exit_code == exit_code
    assert list((tmp_path / "state").iterdir()) == []


def test_a_trained_tokenizer_is_hashed_and_lies_beside_the_shards(run_file: Path, tmp_path: Path) -> None:
    run_file.write_text(
        RUN_TOML.replace('source = "text"', 'source = "text"\ntokenizer = "bpe"').replace(
            "[model]", "[model]\nvocab_size = 300"
        )
    )
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    entry, file = run.dataset.tokenizer, run_tokenizer(run)
    assert entry is not None
    assert file is not None
    assert (sha256(file.data).hexdigest(), file.end) == (entry.sha256, entry.end)
    assert run.dataset.bytes_per_token("heldout") > 2
    assert ShardCache(tmp_path / "state" / "data").has(entry)
    assert 0 < run.manifest.pairs_nats_per_byte < 5.6
    assert run_tokenizer(load_run(tmp_path / "state")) == file


def test_prose_is_packed_apart_and_must_hold_a_window(run_file: Path, tmp_path: Path) -> None:
    run_file.write_text(RUN_TOML.replace('source = "text"', 'source = "text"\nprose = "prose.md"'))
    (tmp_path / "prose.md").write_text("short")
    with pytest.raises(ConfigError, match=r"data: the prose text has 6 tokens; expected at least 9"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    (tmp_path / "prose.md").write_text("long enough to hold a window")
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert run.dataset.num_tokens("prose") == 29
    assert run.manifest.heldout_tokens == run.dataset.num_tokens("heldout")


def test_a_vocabulary_that_does_not_fit_leaves_nothing_behind(run_file: Path, tmp_path: Path) -> None:
    run_file.write_text(RUN_TOML.replace("[model]", "[model]\nvocab_size = 100"))
    with pytest.raises(ConfigError, match=r"model\.vocab_size is 100; expected at least 257"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert not (tmp_path / "state").exists()


def test_start_units_follow_from_the_manifest(run_file: Path, tmp_path: Path) -> None:
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    (unit,) = start_units(run.manifest)
    assert unit.schema_fingerprint == run.manifest.unit_schemas()[unit.unit].fingerprint()
    assert start_units(run.manifest) == (unit,)


def test_units_of_a_run_that_has_started_are_read_from_its_start_record(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    units = start_units(run.manifest)
    monkeypatch.delattr(run_files, "start_root")  # seconds, for a large model
    chain = Chain(run.manifest.run_id, start_root=units[0].state_root)
    (found,) = start_units(run.manifest, chain.sealed_start)
    assert (found.unit, found.state_root) == (units[0].unit, units[0].state_root)
    with pytest.raises(RemoteProtocolError, match="an envelope of run"):
        start_units(run.manifest, Chain().sealed_start)
