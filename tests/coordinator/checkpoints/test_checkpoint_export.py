"""Exports: what other programs load gives our own model's logits, and nothing half-written is left anywhere."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from averaging.data.sources.texts import Text
from averaging.data.vocabulary import FileTokenizer, train_bpe
from averaging.models.llama.config import LlamaConfig
from coordinator.checkpoints import checkpoint_export
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.run.run_files import RunTokenizer
from peer.models.decoder import Decoder, load_flat
from protocol.errors import ConfigError, PotluckError, StorageError
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap
from tests.averaging.data.byte_documents import encode_document
from tests.averaging.data.chat.chat_world import CHATML, chat_template, chat_tokenizer
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import (
    MIXTURE,
    checkpoint_of,
    checkpoint_of_experts,
    checkpoint_of_stages,
    decoder,
)
from tests.peer.models.whole_models import holder_model

ALL_FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def own_logits(config: LlamaConfig, flat_N: torch.Tensor, tokens_BT: torch.Tensor) -> torch.Tensor:
    model = Decoder(config)
    load_flat(model, model_schema(config), flat_N)
    with torch.no_grad():
        return model(tokens_BT)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return checkpoint_of(tmp_path, decoder())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_tied": False},
        {"num_kv_heads": 1},
        {"num_kv_heads": 4, "rope_theta": 500.0, "norm_eps": 1e-2, "vocab_size": 300},
        {"vocab_size": 40},
    ],
    ids=["grouped", "untied", "one key-value head", "all heads, other numbers", "no bytes"],
)
def test_transformers_finds_the_logits_of_our_own_model(
    tmp_path: Path, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = decoder(**changes)
    path = checkpoint_of(tmp_path, config)
    export_checkpoint(path, tmp_path / "out")
    tokens_BT = torch.randint(config.vocab_size, (3, 12), generator=torch.Generator().manual_seed(1))
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", local_files_only=True, output_loading_info=True
    )
    with torch.no_grad():
        found = model(tokens_BT).logits
    flat_N = load_checkpoint(path)[1].anchor_N
    expected = own_logits(config, flat_N, tokens_BT)
    assert not any(report.values())
    assert model.dtype == torch.float32
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_exported_tokenizer_is_the_byte_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    export_checkpoint(checkpoint, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    every_letter = "".join(map(chr, range(0x800))) + " 猫 🐈  two spaces\n\n\tdon't"
    tokens = tokenizer.encode(every_letter)
    np.testing.assert_array_equal(tokens, encode_document(every_letter.encode())[:-1])
    assert tokenizer.decode(tokens) == every_letter
    assert sorted(set(tokenizer.get_vocab().values())) == list(range(257))
    assert tokenizer.eos_token_id == 256


def test_the_model_generates_in_transformers_as_far_as_its_context(checkpoint: Path, tmp_path: Path) -> None:
    export_checkpoint(checkpoint, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    tokens = model.generate(torch.tensor([[100, 101]]), do_sample=False, pad_token_id=256)[0]
    assert len(tokens) == 12 or tokens[-1] == 256


def test_a_vocabulary_that_is_not_bytes_gets_no_tokenizer(tmp_path: Path) -> None:
    exported = export_checkpoint(checkpoint_of(tmp_path, decoder(vocab_size=40)), tmp_path / "out")
    assert set(exported.files) == {"config.json", "model.safetensors"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] is None


@pytest.fixture
def with_words(tmp_path: Path) -> Path:
    """A checkpoint of a run with a trained tokenizer, its model with more room than that needs."""
    trained = train_bpe([Text("potluck trains größer ".encode() * 20, "train")], 270)
    assert trained.file is not None
    return checkpoint_of(tmp_path, decoder(vocab_size=300), tokenizer=RunTokenizer(trained.file, trained.end))


def test_a_runs_own_tokenizer_goes_out_with_its_end_mark(with_words: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert set(export_checkpoint(with_words, out).files) == ALL_FILES
    data = (out / "tokenizer.json").read_bytes()
    assert data == (with_words / "tokenizer.json").read_bytes()
    stored = load_checkpoint(with_words)[0].tokenizer
    assert stored is not None
    config = json.loads((out / "config.json").read_text())
    generation = json.loads((out / "generation_config.json").read_text())
    assert (config["vocab_size"], config["eos_token_id"], generation["eos_token_id"]) == (300, stored.end, stored.end)
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    own = FileTokenizer(data, "it", stored.end)
    text = "potluck größer 🐈\n\n  x"
    np.testing.assert_array_equal(tokenizer.encode(text), own.encode(text.encode()))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.eos_token_id, len(tokenizer)) == (stored.end, own.vocab_size)
    model = AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    tokens = model.generate(torch.tensor([[100, 101]]), do_sample=False, pad_token_id=0)[0]
    assert len(tokens) == 12 or tokens[-1] == stored.end


def test_an_export_has_the_chat_template_and_transformers_puts_questions_as_training_did(tmp_path: Path) -> None:
    words, template = chat_tokenizer(), chat_template()
    tokenizer = RunTokenizer(words.file or b"", words.end)
    path = checkpoint_of(tmp_path, decoder(vocab_size=300), tokenizer=tokenizer, template=template.file_bytes())
    out = tmp_path / "out"
    assert set(export_checkpoint(path, out).files) == ALL_FILES | {"chat_template.jinja"}
    theirs = AutoTokenizer.from_pretrained(out, local_files_only=True)
    talk = [{"role": "user", "content": "größer?"}, {"role": "assistant", "content": "potluck"}]
    found = theirs.apply_chat_template(talk, tokenize=True, return_dict=False)
    text = "<|im_start|>user\ngrößer?<|im_end|>\n<|im_start|>assistant\npotluck<|im_end|>\n"
    assert found == words.encode_marked(text.encode(), ())[0].tolist()
    assert theirs.apply_chat_template(talk[:1], tokenize=False, add_generation_prompt=True).endswith("assistant\n")
    assert (theirs.bos_token, theirs.eos_token) == ("<|im_start|>", "<|im_end|>"), "as in the run's files"
    (out / "chat_template.jinja").unlink()
    older = AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert older.chat_template == CHATML, "programs that read no file of its own"
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["eos_token_id"] == sorted({words.end, template.end})


def test_a_run_on_bytes_exports_its_chat_template_too(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, decoder(), template=chat_template(end=256).file_bytes())
    export_checkpoint(path, tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    asked = theirs.apply_chat_template([{"role": "user", "content": "é"}], tokenize=True, return_dict=False)
    assert bytes(asked) == "<|im_start|>user\né<|im_end|>\n".encode()
    assert theirs.eos_token_id == 256


def test_a_chat_template_that_is_damaged_is_not_exported(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, decoder(), template=chat_template(end=256).file_bytes())
    (path / "chat.json").write_bytes(b"{}")
    with pytest.raises(StorageError, match=r"chat\.json has SHA-256"):
        export_checkpoint(path, tmp_path / "out")


def test_tokenizer_of_another_model_goes_out_as_it_was_trained_with(tmp_path: Path) -> None:
    trained = train_bpe([Text(b"potluck trains " * 20, "train")], 270)
    values = json.loads(trained.file or b"")
    special = {"<|end|>": {"id": "<|end|>", "ids": [trained.end], "tokens": ["<|end|>"]}}
    around = [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": special}
    values["post_processor"] = template
    values["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    words = RunTokenizer(json.dumps(values).encode(), trained.end)
    export_checkpoint(checkpoint_of(tmp_path, decoder(vocab_size=300), tokenizer=words), tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    text = "potluck trains, and so on and on"
    assert theirs.encode(text) == FileTokenizer(words.data, "it", words.end).encode(text.encode()).tolist()
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"] == values["model"]


def test_tokenizer_that_is_lost_damaged_or_lacks_its_end_mark_is_not_exported(with_words: Path, tmp_path: Path) -> None:
    without = checkpoint_of(tmp_path / "other", decoder(), tokenizer=RunTokenizer(b"[]", 3))
    (with_words / "tokenizer.json").write_bytes(b"{}")
    for path, found in ((with_words, "SHA-256"), (without, "names no token 3")):
        with pytest.raises(StorageError, match=found):
            export_checkpoint(path, tmp_path / "out")
    (with_words / "tokenizer.json").unlink()
    with pytest.raises(StorageError, match="could not be read"):
        export_checkpoint(with_words, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folder_that_is_there_and_empty_is_filled_and_its_parents_are_made(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "a" / "b"):
        assert set(export_checkpoint(checkpoint, target).files) == ALL_FILES
        assert {path.name for path in target.iterdir()} == ALL_FILES
        assert len({path.stat().st_mode for path in target.iterdir()}) == 1


@pytest.mark.parametrize("name", ["full", "file", "file/below"])
def test_target_that_is_not_free_is_named_and_untouched(checkpoint: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="a new or an empty folder"):
        export_checkpoint(checkpoint, tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    assert (tmp_path / "file").read_text() == "mine"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda path: _flip(path / "fragment-0.safetensors"), StorageError),
        (lambda path: os.truncate(path / "fragment-0.safetensors", 0), StorageError),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff{"), StorageError),
        (lambda path: (path / "manifest.json").unlink(), ConfigError),
    ],
    ids=["flipped bit", "empty weights", "manifest is no text", "no manifest"],
)
def test_checkpoint_that_does_not_verify_is_not_exported(
    checkpoint: Path, tmp_path: Path, damage: object, error: type[PotluckError]
) -> None:
    assert callable(damage)
    damage(checkpoint)
    with pytest.raises(error):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("changes", [{"dim": 4}, {"dim": 32}, {"depth": 2}])
def test_model_that_is_not_the_bundled_decoder_is_refused(
    checkpoint: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    manifest = load_checkpoint(checkpoint)[0]
    other = manifest.model_copy(update={"model": {**manifest.model, **changes}}).sealed()
    (checkpoint / "manifest.json").write_text(other.model_dump_json())
    with pytest.raises(ConfigError, match="the tensors of its model family"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("failing_call", range(1, 7))
@pytest.mark.parametrize("is_there", [False, True])
def test_full_disk_is_one_clear_error_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_call: int, is_there: bool
) -> None:
    target = tmp_path / "a" / "out"
    if is_there:
        target.mkdir(parents=True)
    calls = 0

    def full(_path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_export, "sync_path", full)
    with pytest.raises(StorageError, match=r"could not be written to .*No space left on device"):
        export_checkpoint(checkpoint, target)
    assert calls == failing_call
    assert list(target.iterdir()) == [] if is_there else not target.parent.exists()


def test_interrupted_export_leaves_nothing(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_export, "write_tensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layers", [(1, 1), (0, 2, 0)], ids=["even", "ends alone"])
def test_a_checkpoint_of_stages_is_exported_as_the_whole_model_is(tmp_path: Path, layers: tuple[int, ...]) -> None:
    config = decoder(is_tied=False)
    of_stages, whole = (tmp_path / name for name in ("stages", "whole"))
    for folder in (of_stages, whole):
        folder.mkdir()
    export_checkpoint(checkpoint_of_stages(of_stages, StageMap(config, layers)), of_stages / "out")
    export_checkpoint(checkpoint_of(whole, config), whole / "out")
    files = {path.name for path in (whole / "out").iterdir()}
    assert {path.name for path in (of_stages / "out").iterdir()} == files
    for name in files - {"model.safetensors"}:
        assert (of_stages / "out" / name).read_bytes() == (whole / "out" / name).read_bytes(), name
    found, expected = (load_file(folder / "out" / "model.safetensors") for folder in (of_stages, whole))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_one_expert_of_a_run_is_written_as_an_ordinary_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = decoder()
    path = checkpoint_of_experts(tmp_path, config)
    tokens_BT = torch.randint(config.vocab_size, (3, 12), generator=torch.Generator().manual_seed(1))
    own = holder_model(config, MIXTURE, [0, 1], load_checkpoint(path)[1].anchor_N)
    for expert in range(2):
        export_checkpoint(path, tmp_path / f"out-{expert}", expert)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / f"out-{expert}", local_files_only=True)
        with torch.no_grad():
            torch.testing.assert_close(model(tokens_BT).logits, own(tokens_BT, expert), rtol=1e-5, atol=1e-4)


def test_which_expert_is_asked_for_must_be_said_and_be_there(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "experts").mkdir()
    path = checkpoint_of_experts(tmp_path / "experts", decoder())
    with pytest.raises(ConfigError, match=r"has experts; expected one of them; name it: --expert 0 to 1"):
        export_checkpoint(path, tmp_path / "out")
    with pytest.raises(ConfigError, match="expert 2 of a run of 2"):
        export_checkpoint(path, tmp_path / "out", 2)
    with pytest.raises(ConfigError, match="leave --expert out"):
        export_checkpoint(checkpoint, tmp_path / "out", 0)
    assert not (tmp_path / "out").exists()
