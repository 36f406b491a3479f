"""The host's folder."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from averaging.data.chat.run_template import open_template
from averaging.data.shards import ShardCache
from averaging.data.sources.texts import Text
from averaging.data.start_weights import start_shards
from averaging.data.tasks.task_file import Prompts, open_task
from averaging.data.vocabulary import train_bpe
from averaging.state.start_state import start_root, start_state
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.run.run_files import RunTokenizer, chat_template, load_run, open_run, run_tokenizer, start_units
from protocol.errors import ConfigError, PotluckError, RemoteProtocolError, StorageError, VersionError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.run.manifest import MANIFEST_DOMAIN, load_run_config
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.data.chat.chat_world import CHATML, chat_tokenizer
from tests.coordinator.chain_world import Chain
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder

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


def test_a_run_that_was_opened_to_strangers_says_how_it_is_started_again(run_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    open_run(run_file, state, HOST, now_unix_s=1_700_000_000.0, is_open=True)
    with pytest.raises(ConfigError, match="this run admits strangers: start it with --open"):
        open_run(run_file, state, HOST, now_unix_s=1_700_000_000.0)
    assert not open_run(run_file, state, HOST, now_unix_s=1_700_000_100.0, is_open=True).was_created


def test_words_about_the_run_change_at_any_start_and_the_run_stays_the_same(run_file: Path, tmp_path: Path) -> None:
    run_file.write_text(RUN_TOML + '[page]\ndescription = "Our letters"\n')
    first = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    run_file.write_text(RUN_TOML + '[page]\ndescription = "Our old letters"\ncontact = "host@example.org"\n')
    second = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_800_000_000.0)
    assert second.signed_manifest == first.signed_manifest
    assert first.page.as_json() == {"description": "Our letters"}
    assert second.page.as_json() == {"description": "Our old letters", "contact": "host@example.org"}


def test_a_run_goes_on_with_its_chunks_where_the_file_says_nothing_of_them(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its release may have found another number for such a model."""
    run_file.write_text(RUN_TOML.replace("chunk_elements = 256\n", ""))
    first = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    monkeypatch.setattr("protocol.run.manifest.default_chunk_elements", lambda *_: 512)
    assert load_run_config(run_file).chunk_elements == 512
    second = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_800_000_000.0)
    assert second.signed_manifest == first.signed_manifest
    run_file.write_text(RUN_TOML)
    with pytest.raises(ConfigError, match=r"round\.chunk_elements differs"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_800_000_000.0)


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


def test_text_without_one_window_is_refused_with_the_numbers(run_file: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "texts").iterdir():
        path.write_text("short")
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


def test_a_run_on_chats_has_its_template_and_its_questions_as_files_for_everybody(
    run_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(chat_tokenizer().file or b"")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    talks = [
        [{"role": "user", "content": f"potluck {n}"}, {"role": "assistant", "content": "trains " * 9}]
        for n in range(90)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    (tmp_path / "asked.jsonl").write_text('{"prompt": "potluck?"}\n')
    data = 'source = "jsonl"\nformat = "chat"\ntokenizer = "tokenizer.json"\nheldout_every = 4'
    toml = RUN_TOML.replace('source = "text"', data).replace("texts/*.txt", "rows.jsonl")
    toml = toml.replace("[model]", "[model]\nvocab_size = 300")
    run_file.write_text(toml + '[[evaluate]]\nname = "asked"\nfile = "asked.jsonl"\nkind = "prompts"\n')
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    template = open_template(chat_template(run), "it")
    assert (template.source, template.variables) == (CHATML, {"eos_token": "<|end|>"})
    cache = ShardCache(tmp_path / "state" / "data")
    assert all(cache.has(file) for file in run.dataset.files)
    assert run.dataset.template in run.dataset.files
    assert run.dataset.template in run.dataset.files_without_text
    task = open_task(cache.read(run.dataset.task("asked").sha256) or b"")
    assert isinstance(task, Prompts)
    assert task.end == template.end != run.dataset.tokenizer.end  # type: ignore[union-attr]
    assert chat_template(load_run(tmp_path / "state")) == template.file_bytes()


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
    monkeypatch.delattr("averaging.state.start_state.start_root")  # seconds, for a large model
    chain = Chain(run.manifest.run_id, start_root=units[0].state_root)
    (found,) = start_units(run.manifest, chain.sealed_start)
    assert (found.unit, found.state_root) == (units[0].unit, units[0].state_root)
    with pytest.raises(RemoteProtocolError, match="an envelope of run"):
        start_units(run.manifest, Chain().sealed_start)


def test_run_that_starts_from_a_checkpoint_has_its_weights_as_shards_for_everybody(
    run_file: Path, tmp_path: Path
) -> None:
    export_checkpoint(checkpoint_of(tmp_path / "theirs", decoder()), tmp_path / "llama")
    numbers = "\n".join(f"{key} = {value}" for key, value in decoder().model_dump(exclude={"is_tied"}).items())
    text = RUN_TOML.replace(RUN_TOML[RUN_TOML.index("dim = 8") : RUN_TOML.index("[data]")], numbers + "\n")
    text = text.replace("batch_tokens = 64", "batch_tokens = 48")
    run_file.write_text(text.replace("[run]", '[run]\nstart_from = "llama"'))
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    anchor_N = load_checkpoint(next((tmp_path / "theirs").glob("0*")))[1].anchor_N
    cache = ShardCache(tmp_path / "cache")
    for entry in run.dataset.shards:  # as a peer gets them
        cache.put(entry, (tmp_path / "state" / "data" / entry.sha256).read_bytes())
    given = start_shards(run.dataset, cache.path)
    (schema,) = run.manifest.unit_schemas().values()
    assert len(given) > 1
    assert torch.equal(start_state(schema, 1, given=given).anchor_N, anchor_N)
    (unit,) = start_units(run.manifest, given=run.start_shards)
    assert unit.state_root == start_root(schema, ChunkGrid(schema.num_elements, 256), 1, given)
    assert (unit,) != start_units(run.manifest)
    assert load_run(tmp_path / "state").start_shards == run.start_shards
    run_file.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.start_from differs"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)


def _start_from(run_file: Path, vocab_size: int, data: str) -> None:
    config = decoder(vocab_size=vocab_size)
    numbers = "\n".join(f"{key} = {value}" for key, value in config.model_dump(exclude={"is_tied"}).items())
    text = RUN_TOML.replace(RUN_TOML[RUN_TOML.index("dim = 8") : RUN_TOML.index("[data]")], numbers + "\n")
    text = text.replace("batch_tokens = 64", "batch_tokens = 48").replace("[data]", f"[data]\n{data}")
    run_file.write_text(text.replace("[run]", '[run]\nstart_from = "llama"'))


def test_run_goes_on_with_the_weights_and_the_tokenizer_of_another_and_with_no_other_tokenizer(
    run_file: Path, tmp_path: Path
) -> None:
    trained = train_bpe([Text(b"potluck trains " * 20, "train")], 265)
    words = RunTokenizer(trained.file or b"", trained.end)
    path = checkpoint_of(tmp_path / "theirs", decoder(vocab_size=300), tokenizer=words)
    export_checkpoint(path, tmp_path / "llama")
    _start_from(run_file, 300, 'tokenizer = "llama/tokenizer.json"')
    run = open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert run_tokenizer(run) == words
    (schema,) = run.manifest.unit_schemas().values()
    assert torch.equal(start_state(schema, 1, given=run.start_shards).anchor_N, load_checkpoint(path)[1].anchor_N)
    assert run.dataset.token_bytes == 2
    _start_from(run_file, 300, 'tokenizer = "bytes"')
    with pytest.raises(ConfigError, match="the run's tokenizer has 257 tokens"):
        open_run(run_file, tmp_path / "other", HOST, now_unix_s=1_700_000_000.0)
    assert not (tmp_path / "other").exists()


def test_run_that_starts_from_nowhere_is_not_opened(run_file: Path, tmp_path: Path) -> None:
    run_file.write_text(RUN_TOML.replace("[run]", '[run]\nstart_from = "nowhere"'))
    with pytest.raises(ConfigError, match=r"nowhere/config\.json is not there"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert not (tmp_path / "state").exists()


def test_tokenizer_that_drops_the_text_opens_no_run_and_the_share_is_told(run_file: Path, tmp_path: Path) -> None:
    rules = Tokenizer(models.BPE({"t": 0, "e": 1, "</s>": 2}, []))
    rules.save(str(tmp_path / "drops.json"))
    run_file.write_text(RUN_TOML.replace("[data]", '[data]\ntokenizer = "drops.json"'))
    with pytest.raises(ConfigError, match=r"the tokenizer loses \d\d\.\d\d% of the text"):
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert not (tmp_path / "state" / "data").exists()
