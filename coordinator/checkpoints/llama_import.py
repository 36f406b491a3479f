"""A Hugging Face Llama checkpoint on this machine's disk as the first values of a run. Blocks.

config.json must say what run.toml's [model] says; the weights may lie in one safetensors file or in several with an index,
as float32, bfloat16 or float16. Nothing in the folder is executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coordinator.checkpoints.llama_layout import llama_config, llama_name, token_numbers
from protocol.errors import ConfigError, StorageError
from protocol.plain_file import check_plain_file
from protocol.tensors.decoder_schema import DecoderConfig, decoder_schema

if TYPE_CHECKING:
    import torch

_WEIGHTS_NAME: Final = "model.safetensors"
_INDEX_NAME: Final = "model.safetensors.index.json"
_CONFIG_NAME: Final = "config.json"
_TOKENIZER_NAME: Final = "tokenizer.json"
_MAX_JSON_BYTES: Final = 1 << 26
_DTYPES: Final = ("F32", "BF16", "F16")

_KEYS: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_dim",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "is_tied",
}
"""Keys of config.json, and the keys of run.toml's [model] that must have the same value."""

_FIXED: Final = ("model_type", "hidden_act", "attention_bias", "mlp_bias")
"""Keys of config.json that must say what the bundled decoder is; it has no other kind."""


def read_llama(folder: Path, config: DecoderConfig) -> torch.Tensor:
    """(N,) float32: the weights in `folder`, in the order of the decoder's schema.

    Raises:
        ConfigError: no checkpoint there, numbers other than `config`'s, or tensors that are missing, surplus or of another kind.
        StorageError: a file that cannot be read or is damaged.
    """
    import torch
    from safetensors import safe_open

    _check_numbers(folder, config)
    schema = decoder_schema(config)
    wanted = {llama_name(spec.name): spec for spec in schema.tensors}
    flat_N = torch.empty(schema.num_elements)
    missing = set(wanted)
    for file in _weight_files(folder):
        with _reading(file), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping, it only has such a method
                if name not in wanted:
                    _refuse_surplus(file, name, is_tied=config.is_tied)
                    continue
                spec, part = wanted[name], opened.get_slice(name)
                if tuple(part.get_shape()) != spec.shape or part.get_dtype() not in _DTYPES:
                    found = f"{file}: {name} is {part.get_dtype()} of shape {tuple(part.get_shape())}"
                    raise ConfigError(found, f"one of {', '.join(_DTYPES)} of shape {spec.shape}")
                values = flat_N[schema.offset(spec.name) :][: spec.num_elements]
                values.copy_(opened.get_tensor(name).reshape(-1))
                if not bool(torch.isfinite(values).all()):
                    raise ConfigError(f"{file}: {name} has values that are not finite", "numbers")
                missing.discard(name)
    if missing:
        raise ConfigError(f"{folder} lacks {min(missing)} ({len(missing)} tensors in all)", "a whole checkpoint")
    return flat_N


def check_tokenizer(folder: Path, config: DecoderConfig, num_tokens: int) -> None:
    """Refuse a run whose tokens are not the ones that the weights were trained on: its tokenizer must have as many as the one in
    `folder`, or where there is none as the model.

    Raises:
        ConfigError: it has `num_tokens`, and that is another number.
        StorageError: the tokenizer in `folder` cannot be read.
    """
    file, place, expected = folder / _TOKENIZER_NAME, "model.vocab_size", config.vocab_size
    if file.exists():
        place, expected = str(file), max((number for _, number in token_numbers(_read_small(file))), default=-1) + 1
        if not expected:
            raise ConfigError(f"{file} names no tokens", "a tokenizer.json", "download the checkpoint again")
    if num_tokens != expected:
        raise ConfigError(
            f"the run's tokenizer has {num_tokens} tokens",
            f"{expected}, as {place} of run.start_from says",
            "set data.tokenizer to the tokenizer.json of these weights",
        )


def _check_numbers(folder: Path, config: DecoderConfig) -> None:
    file = folder / _CONFIG_NAME
    found = _found_numbers(_read_json(file))
    expected = llama_config(config)
    for key in _FIXED:
        if found[key] != expected[key]:
            raise ConfigError(f"{file}: {key} is {found[key]!r}", f"{expected[key]!r}", "start from another checkpoint")
    if found["rope_type"] not in ("default", None):
        raise ConfigError(f"{file}: rope_type is {found['rope_type']!r}", "plain rotary positions")
    wrong = [
        f"model.{own} is {json.dumps(expected[key])} and not {json.dumps(found[key])}"
        for key, own in _KEYS.items()
        if found[key] != expected[key]
    ]
    if wrong:
        raise ConfigError(", ".join(wrong), f"what {file} says", "write these values into run.toml's [model]")
    if found["head_dim"] != config.head_dim:
        raise ConfigError(f"{file}: head_dim is {found['head_dim']}", f"{config.head_dim}, which is dim over heads")


def _found_numbers(values: Mapping[str, object]) -> dict[str, object]:
    """config.json's values, and for what it leaves out the defaults of that layout."""
    rope = next((r for r in (values.get("rope_parameters"), values.get("rope_scaling")) if isinstance(r, dict)), {})
    dim, heads = values.get("hidden_size"), values.get("num_attention_heads")
    head_dim = dim // heads if isinstance(dim, int) and isinstance(heads, int) and heads else None
    return {
        "num_key_value_heads": heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")),
        **dict.fromkeys(("model_type",)),
        "rope_theta": rope.get("rope_theta", 10000.0),
        "rope_type": rope.get("rope_type", rope.get("type")),
        **values,
        "head_dim": values.get("head_dim") or head_dim,
    }


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX_NAME
    if not index.exists():
        return [folder / _WEIGHTS_NAME]
    names = _read_json(index).get("weight_map")
    files = set(names.values()) if isinstance(names, dict) else set()
    plain = {name for name in files if isinstance(name, str) and name == Path(name).name}
    if not files or plain != files:
        raise ConfigError(f"{index} names no files, or some outside of its folder", "a weight_map of files beside it")
    return [folder / name for name in sorted(plain)]


def _refuse_surplus(file: Path, name: str, *, is_tied: bool) -> None:
    """Tables of rotary frequencies are computed, and a tied head is the embedding: both may be left aside."""
    if name.endswith("rotary_emb.inv_freq") or (is_tied and name == "lm_head.weight"):
        return
    raise ConfigError(f"{file}: {name} has no place in the bundled decoder", "the tensors of a Llama without biases")


def _read_json(file: Path) -> dict[str, object]:
    try:
        values = json.loads(_read_small(file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON", "a JSON object", "download the checkpoint again") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} is no JSON object", "a JSON object", "download the checkpoint again")
    return values


def _read_small(file: Path) -> bytes:
    with _reading(file):
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise ConfigError(f"{file} is larger than {_MAX_JSON_BYTES} bytes", "a small JSON file")
        return file.read_bytes()


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    check_plain_file(file, "a file of a checkpoint", "mend run.start_from")
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        expected = f"a folder with {_CONFIG_NAME} and {_WEIGHTS_NAME}"
        raise ConfigError(f"{file} is not there", expected, "mend run.start_from") from error
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror or error})", "a readable file") from error
    except SafetensorError as error:
        raise StorageError(f"{file} is damaged ({error})", "a safetensors file", "download it again") from error
