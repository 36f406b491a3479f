"""Weights of another program's checkpoint: taken as they are, or refused with what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from averaging.data.sources.texts import Text
from averaging.data.tokenizer import ByteTokenizer
from averaging.data.vocabulary import train_bpe
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.weights_import import check_tokenizer, check_tokens, read_weights
from protocol.errors import ConfigError, PotluckError, StorageError
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def exported(folder: Path, **changes: object) -> Path:
    """An exported checkpoint of a small decoder."""
    export_checkpoint(checkpoint_of(folder, decoder(**changes)), folder / "llama")
    return folder / "llama"


def _change_config(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    values = {key: value for key, value in {**values, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))


def _change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def _shard(folder: Path) -> None:
    """The same in two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, weight_map = sorted(tensors), {}
    for number, part in enumerate((names[:7], names[7:])):
        file = f"model-{number + 1:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("is_sharded", [True, False])
def test_what_was_exported_comes_back_bit_for_bit(tmp_path: Path, is_tied: bool, is_sharded: bool) -> None:
    folder = exported(tmp_path, is_tied=is_tied)
    if is_sharded:
        _shard(folder)
    anchor_N = load_checkpoint(next(tmp_path.glob("0*")))[1].anchor_N
    assert torch.equal(read_weights(folder, decoder(is_tied=is_tied)), anchor_N)


@pytest.mark.parametrize("num_values", [1, 16 * 7, 16 * 257])
def test_tensors_are_taken_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_values: int
) -> None:
    monkeypatch.setattr("coordinator.checkpoints.weights_import._VALUES_AT_ONCE", num_values)
    folder = exported(tmp_path)
    head = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].clone()
    _change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": head}))
    anchor_N = load_checkpoint(next(tmp_path.glob("0*")))[1].anchor_N
    assert torch.equal(read_weights(folder, decoder()), anchor_N)
    head[-1, -1] += 1.0
    _change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": head}))
    with pytest.raises(ConfigError, match=r"lm_head\.weight differs"):
        read_weights(folder, decoder())
    head[-1, -1] = float("nan")
    _change_tensors(folder, lambda tensors: tensors.update({"model.embed_tokens.weight": head}))
    with pytest.raises(ConfigError, match="not finite"):
        read_weights(folder, decoder())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_becomes_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = exported(tmp_path)
    _change_tensors(folder, lambda tensors: tensors.update({n: t.to(dtype) for n, t in tensors.items()}))
    anchor_N = load_checkpoint(next(tmp_path.glob("0*")))[1].anchor_N
    assert torch.equal(read_weights(folder, decoder()), anchor_N.to(dtype).float())


def test_what_older_releases_leave_out_or_add_does_not_matter(tmp_path: Path) -> None:
    folder = exported(tmp_path, num_kv_heads=4, norm_eps=1e-6)
    gone = ("rope_theta", "rope_parameters", "head_dim", "num_key_value_heads", "rms_norm_eps", "mlp_bias")
    _change_config(folder, **dict.fromkeys(gone, ...), rope_scaling=None)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    copied = "model.embed_tokens.weight"
    _change_tensors(folder, lambda tensors: tensors.update({**extra, "lm_head.weight": tensors[copied].clone()}))
    assert len(read_weights(folder, decoder(num_kv_heads=4, norm_eps=1e-6)))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dim": 32, "ffn_dim": 8}, "model.dim is 32 and not 16, model.ffn_dim is 8 and not 24"),
        ({"vocab_size": 300}, "model.vocab_size is 300 and not 257"),
        ({"num_layers": 1}, "model.num_layers is 1 and not 2"),
        ({"num_heads": 2}, "model.num_heads is 2 and not 4"),
        ({"num_kv_heads": 4}, "model.num_kv_heads is 4 and not 2"),
        ({"rope_theta": 500.0}, "model.rope_theta is 500.0 and not 10000.0"),
        ({"norm_eps": 1e-6}, "model.norm_eps is 1e-06 and not 1e-05"),
        ({"is_tied": False}, "model.is_tied is false and not true"),
    ],
)
def test_each_number_that_differs_from_run_toml_is_named(
    tmp_path: Path, changes: dict[str, object], found: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read_weights(exported(tmp_path), decoder(**changes))
    assert found in raised.value.one_line()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"model_type": "qwen3"}, "model_type is 'qwen3'"),
        ({"model_type": "gemma3"}, "model_type is 'gemma3'; expected 'llama'"),
        ({"attention_bias": True}, "attention_bias is true; expected false; no family has another: llama, mistral, "),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"; expected "silu"; no family has another'),
        ({"quantization_config": {"bits": 4}}, 'quantization_config is {"bits": 4}; expected null'),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
        (
            {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}},
            'model.rope_scaling is "none" and not "linear", model.rope_factor is 1.0 and not 2.0',
        ),
        (
            {"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_type is 'dynamic'; expected one of default, linear, llama3, yarn, which all families have",
        ),
        ({"rope_parameters": ..., "rope_scaling": {"type": "linear"}}, "factor is null; expected a number"),
        ({"head_dim": 8}, "model.head_dim is 4 and not 8"),
        ({"vocab_size": None}, "vocab_size is null; expected a number; download"),
        ({"hidden_size": "16"}, 'hidden_size is "16"; expected a number; download'),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; expected true or false"),
        ({"rope_theta": 500.0}, "rope_theta is 500.0 and rope_parameters.rope_theta is 10000.0; expected one value"),
        (
            {"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}},
            "rope_parameters.rope_theta is 10000.0 and rope_scaling.rope_theta is 5.0",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_parameters and rope_scaling differ; expected one of both",
        ),
        (
            {"rope_parameters": ..., "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False}},
            "rope_scaling.truncate is False; expected True, in all families",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {
                "rope_parameters": ...,
                "rope_scaling": {"type": "yarn", "factor": 2.0},
                "original_max_position_embeddings": 3,
            },
            "original_max_position_embeddings is 3, and ",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 10000.0}}},
            "rope_parameters has full_attention with values of its own",
        ),
        ({"rope_scaling": "linear"}, 'rope_scaling is "linear"; expected an object or null'),
        ({"rope_parameters": ..., "rope_scaling": {"rope_type": None}}, "rope_type is None"),
    ],
)
def test_config_of_another_kind_of_model_is_refused(tmp_path: Path, changes: dict[str, object], found: str) -> None:
    folder = exported(tmp_path)
    _change_config(folder, **changes)
    with pytest.raises(ConfigError) as raised:
        read_weights(folder, decoder())
    assert found in raised.value.one_line()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": None},
        {"head_dim": None},
        {"rope_scaling": None, "rope_parameters": None},
        {"rope_theta": ..., "rope_parameters": {"rope_theta": 10000.0}},
        {"rope_parameters": ..., "rope_scaling": {"type": "default"}},
    ],
    ids=["heads", "size of heads", "no scaling", "newer", "older"],
)
def test_values_that_follow_from_others_are_those_that_transformers_reads(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    folder = exported(tmp_path, num_kv_heads=4)
    values = json.loads((folder / "config.json").read_text()) | changes
    values = {key: value for key, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    theirs = AutoConfig.from_pretrained(folder, local_files_only=True)
    own = decoder(num_kv_heads=theirs.num_key_value_heads, rope_theta=theirs.rope_parameters["rope_theta"])
    assert len(read_weights(folder, own))
    assert (own.num_kv_heads, own.head_size) == (4, theirs.head_dim)


def test_head_of_its_own_in_a_checkpoint_that_ties_it_is_refused_with_both_names(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    _change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(257, 16)}))
    with pytest.raises(
        ConfigError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight, and config\.json"
    ):
        read_weights(folder, decoder())


def test_checkpoint_with_a_single_file_and_an_index_of_others_is_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    single = (folder / "model.safetensors").read_bytes()
    _shard(folder)
    (folder / "model.safetensors").write_bytes(single)
    with pytest.raises(ConfigError, match=r"has model\.safetensors, and model\.safetensors\.index\.json names others"):
        read_weights(folder, decoder())


def test_tensor_in_two_files_is_refused_with_both_names(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    _shard(folder)
    second = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(folder / "model-00001-of-00002.safetensors")
    save_file({**load_file(second), min(tensors): tensors[min(tensors)] + 1}, second)
    with pytest.raises(ConfigError, match=rf"{min(tensors)} is in .*model-00001.* and in .*model-00002"):
        read_weights(folder, decoder())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda tensors: tensors.pop(Q_PROJ), f"lacks {Q_PROJ} \\(1 tensors"),
        (lambda tensors: tensors.update({Q_PROJ: torch.zeros(16, 15)}), r"is F32 of shape \(16, 15\)"),
        (lambda tensors: tensors.update({Q_PROJ: torch.zeros(16, 16, dtype=torch.int8)}), "is I8 of shape"),
        (lambda tensors: tensors[Q_PROJ].fill_(torch.nan), "not finite"),
        (lambda tensors: tensors.update({"model.bias": torch.zeros(1)}), "model.bias has no place"),
    ],
    ids=["missing", "shape", "kind", "not finite", "surplus"],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], found: str
) -> None:
    folder = exported(tmp_path)
    _change_tensors(folder, change)
    with pytest.raises(ConfigError, match=found):
        read_weights(folder, decoder())


def test_a_head_that_neither_the_weights_nor_a_tie_gives_says_how_to_tie_it(tmp_path: Path) -> None:
    folder = exported(tmp_path, is_tied=False)
    _change_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ConfigError, match=r"lacks lm_head\.weight.* set tie_word_embeddings in config\.json"):
        read_weights(folder, decoder(is_tied=False))


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_device_in_the_place_of_a_file_is_named_and_not_read(tmp_path: Path, name: str) -> None:
    folder = exported(tmp_path)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/null")
    with pytest.raises(ConfigError, match=rf"{name} is a device.*run\.start_from"):
        read_weights(folder, decoder())


@pytest.mark.parametrize(
    ("name", "data", "error", "found"),
    [
        ("config.json", None, ConfigError, "is not there"),
        ("config.json", b"", ConfigError, "is no JSON"),
        ("config.json", b"\xff\xfe", ConfigError, "is no JSON"),
        ("config.json", b'{"vocab_size": ' + b"9" * 5000 + b"}", ConfigError, "has a number that is too long"),
        ("config.json", b"[" * 100_000, ConfigError, "is no JSON"),
        ("config.json", b"[]", ConfigError, "no JSON object"),
        ("config.json", b"{}", ConfigError, "model_type is None"),
        ("model.safetensors", None, ConfigError, "is not there"),
        ("model.safetensors", b"", StorageError, "is damaged"),
        ("model.safetensors", b"x" * 5000, StorageError, "is damaged"),
        (INDEX, b"{}", ConfigError, "names no files"),
        (INDEX, b'{"weight_map": {"a": "../model.safetensors"}}', ConfigError, "outside of its folder"),
        (INDEX, b'{"weight_map": {"a": 1}}', ConfigError, "outside of its folder"),
        (INDEX, b'{"weight_map": {"a": "gone.safetensors"}}', ConfigError, "is not there"),
    ],
)
def test_file_that_is_lost_damaged_or_something_else_is_one_line(
    tmp_path: Path, name: str, data: bytes | None, error: type[PotluckError], found: str
) -> None:
    folder = exported(tmp_path)
    if data is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(data)
    with pytest.raises(error, match=found):
        read_weights(folder, decoder())


def test_tokenizer_of_the_run_must_have_as_many_tokens_as_that_of_the_weights(tmp_path: Path) -> None:
    folder = exported(tmp_path, vocab_size=300)
    check_tokenizer(folder, decoder(vocab_size=300), 257)
    with pytest.raises(ConfigError, match=r"has 300 tokens.*257, as .*tokenizer\.json of run\.start_from says"):
        check_tokenizer(folder, decoder(vocab_size=300), 300)
    (folder / "tokenizer.json").unlink()
    check_tokenizer(folder, decoder(vocab_size=300), 300)
    with pytest.raises(ConfigError, match=r"has 257 tokens.*300, as model\.vocab_size"):
        check_tokenizer(folder, decoder(vocab_size=300), 257)


def test_tokenizer_of_the_run_must_have_the_tokens_of_that_of_the_weights(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    check_tokens(folder, ByteTokenizer())
    trained = train_bpe([Text(b"potluck trains " * 20, "train")], 265)
    (folder / "tokenizer.json").write_bytes(trained.file or b"")
    check_tokens(folder, trained)
    other = train_bpe([Text(b"another text altogether " * 20, "train")], 265)
    assert other.vocab_size == trained.vocab_size
    for wrong in (other, ByteTokenizer()):
        with pytest.raises(ConfigError, match=r"of the run's tokenizer; expected \d+, as .*tokenizer\.json"):
            check_tokens(folder, wrong)
    (folder / "tokenizer.json").unlink()
    check_tokens(folder, other)


def test_tokenizers_with_scored_pieces_are_counted_with_what_was_added(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    values = {"added_tokens": [{"id": 3, "content": "</s>"}], "model": {"vocab": [["a", -1.0], ["b", -2.0]]}}
    (folder / "tokenizer.json").write_text(json.dumps(values))
    check_tokenizer(folder, decoder(), 4)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b'{"model": {"vocab": 1}}'])
def test_tokenizer_beside_the_weights_that_is_none_is_named(tmp_path: Path, data: bytes) -> None:
    folder = exported(tmp_path)
    (folder / "tokenizer.json").write_bytes(data)
    with pytest.raises(ConfigError, match=r"tokenizer\.json names no tokens"):
        check_tokenizer(folder, decoder(), 257)
