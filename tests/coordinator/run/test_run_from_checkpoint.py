"""A run.toml from a checkpoint: it can be hosted as it is, and what cannot be trained is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from averaging.data.sources.texts import Text
from averaging.data.vocabulary import train_bpe
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.weights_import import read_weights
from coordinator.commands import init_run
from coordinator.run import run_from_checkpoint
from coordinator.run.run_checks import check_new_run
from coordinator.run.run_files import RunTokenizer
from coordinator.run.run_from_checkpoint import run_toml_from
from protocol.errors import ConfigError
from protocol.run.manifest import RunConfig, load_run_config
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.model_families import FAMILIES, parse_model
from tests.averaging.models.test_family import SMALL
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of

STRETCHED = {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_original_tokens": 16, "rope_theta": 500000.0}


def exported(folder: Path, config: ModelConfig, tokenizer: RunTokenizer | None = None) -> Path:
    """A checkpoint in the family's layout, in a folder beside the run's."""
    export_checkpoint(checkpoint_of(folder, config, tokenizer=tokenizer), folder / "weights")
    return folder / "weights"


def written(source: Path) -> RunConfig:
    path = source.parent / "runs" / "run.toml"
    path.parent.mkdir()
    init_run(path, source=str(source))
    return load_run_config(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_has_the_numbers_of_config_json_and_begins_with_its_weights(tmp_path: Path, family: str) -> None:
    config = parse_model({"family": family, **SMALL[family], **STRETCHED, "norm_eps": 1e-6, "is_tied": False})
    folder = exported(tmp_path, config)
    run = written(folder)
    assert run.model == config
    assert run.run.start_from == "../weights"
    assert run.inner.optimizer == "adamw"
    assert len(read_weights(tmp_path / "runs" / run.run.start_from, run.model))


def test_keys_that_follow_from_others_are_left_out(tmp_path: Path) -> None:
    text = run_toml_from(str(exported(tmp_path, parse_model(SMALL["llama"]))), tmp_path / "run.toml")
    assert not [key for key in ("family", "head_dim", "max_position_tokens", "rope") if f"\n{key}" in text]


def test_a_model_that_reads_long_texts_is_trained_on_shorter_ones_and_still_says_that_it_reads_them(
    tmp_path: Path,
) -> None:
    long = parse_model({**SMALL["llama"], "max_position_tokens": 131072})
    run = written(exported(tmp_path, long))
    assert (run.model.context_tokens, run.model.model_dump()["max_position_tokens"]) == (2048, 131072)
    assert run.inner.batch_tokens % 2048 == 0


def test_the_tokenizer_of_the_weights_is_the_runs_which_can_be_hosted(tmp_path: Path) -> None:
    trained = train_bpe([Text(b"potluck trains " * 20, "train")], 270)
    words = RunTokenizer(trained.file or b"", trained.end)
    run = written(exported(tmp_path, parse_model({**SMALL["qwen3"], "family": "qwen3", "vocab_size": 300}), words))
    assert (run.data.tokenizer, run.model.vocab_size) == ("../weights/tokenizer.json", 300)
    assert check_new_run(run, tmp_path / "runs") == []


def test_weights_of_words_without_their_tokenizer_are_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path, parse_model({**SMALL["llama"], "vocab_size": 300}))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json; expected the tokenizer of its weights"):
        run_toml_from(str(folder), tmp_path / "run.toml")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"model_type": "gemma3"}, "model_type is 'gemma3'; expected one of llama, mistral, olmo2, qwen2, qwen3"),
        ({"hidden_size": 15}, "3 values per head: expected an even number"),
        ({"num_hidden_layers": 9999}, "num_layers is 9999; expected less than or equal to 512"),
        ({"num_hidden_layers": 4}, "lacks model.layers.3.input_layernorm.weight"),
    ],
)
def test_a_checkpoint_that_cannot_be_trained_is_named_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, object], found: str
) -> None:
    folder = exported(tmp_path, parse_model(SMALL["llama"]))
    values = json.loads((folder / "config.json").read_text())
    values = {key: value for key, value in values.items() if key != "head_dim"} | changes
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError) as raised:
        init_run(tmp_path / "run.toml", source=str(folder))
    assert found in raised.value.one_line()
    assert not (tmp_path / "run.toml").exists()


@pytest.mark.parametrize("source", ["nowhere", "a/b/c", "../nowhere/x y"])
def test_what_is_neither_a_folder_nor_a_name_of_the_hub_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigError, match=r"is no folder; expected a folder with config\.json, or OWNER/NAME"):
        run_toml_from(source, tmp_path / "run.toml")


def test_a_name_of_the_hub_is_fetched_into_a_folder_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = exported(tmp_path, parse_model(SMALL["llama"]))

    def fetched(name: str, folder: Path, _check: object) -> None:
        assert name == "owner/tiny"
        stored.rename(folder)

    monkeypatch.setattr(run_from_checkpoint, "fetch_checkpoint", fetched)
    assert '\nstart_from = "tiny" ' in run_toml_from("hf://owner/tiny", tmp_path / "run.toml")
