"""The Llama decoder in the layout that Hugging Face calls Llama: names of tensors, and config.json.

Only the names differ. Shapes are the same on both sides, and so is the order of a head's values (rotary positions turn its two
halves against each other), so nothing is transposed or permuted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from averaging.models.family import Layout
from averaging.models.llama.config import LlamaConfig
from protocol.errors import ConfigError

_TOP_NAMES: Final = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}

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
"""Keys of config.json with a fixed value; the decoder has no variants."""


class LlamaLayout:
    """Names and config.json of the layout."""

    def name(self, tensor: str) -> str:
        """The layout's name of one of the decoder's tensors, as averaging/models/llama/config.py names them."""
        if tensor in _TOP_NAMES:
            return _TOP_NAMES[tensor]
        _, layer, part, _ = tensor.split(".")
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"

    def config_json(self, config: LlamaConfig, end: int | None = None) -> dict[str, object]:
        """The contents of config.json for a float32 model with this config. `end` is the token that ends a text."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.dim,
            "intermediate_size": config.ffn_dim,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "max_position_embeddings": config.context_tokens,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            # Releases of transformers before 5 read the first, later ones the second.
            "rope_theta": config.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": config.is_tied,
            "bos_token_id": end,
            "eos_token_id": end,
            "pad_token_id": None,
            "torch_dtype": "float32",
        }

    def check_config_json(self, file: Path, found: Mapping[str, object], config: LlamaConfig) -> None:
        """Reject a checkpoint of another model.

        Raises:
            ConfigError: its numbers differ from `config`, or this decoder does not support it.
        """
        found = _found_numbers(file, found)
        expected = self.config_json(config)
        for key in _FIXED:
            if found[key] != expected[key]:
                raise ConfigError(
                    f"{file}: {key} is {found[key]!r}", f"{expected[key]!r}", "start from another checkpoint"
                )
        for key in _KEYS:
            _check_kind(file, key, found[key])
        wrong = [
            f"model.{own} is {json.dumps(expected[key])} and not {json.dumps(found[key])}"
            for key, own in _KEYS.items()
            if found[key] != expected[key]
        ]
        if wrong:
            raise ConfigError(", ".join(wrong), f"what {file} says", "write these values into run.toml's [model]")
        if found["head_dim"] != config.head_dim:
            raise ConfigError(f"{file}: head_dim is {found['head_dim']}", f"{config.head_dim}, which is dim over heads")

    def may_be_left_out(self, name: str, config: LlamaConfig) -> bool:
        """True for tables of rotary frequencies, which are computed, and for a tied head, which is the embedding."""
        return name.endswith("rotary_emb.inv_freq") or (config.is_tied and name == "lm_head.weight")


LAYOUT: Final[Layout[LlamaConfig]] = LlamaLayout()


_DEFAULTS: Final = {
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
"""Values of transformers for keys that a config.json lacks. None follows from other keys."""


def _found_numbers(file: Path, values: Mapping[str, object]) -> dict[str, object]:
    """The values of config.json as transformers reads them, with its defaults for missing keys.

    Raises:
        ConfigError: rotary positions of another kind, or with two values that releases of transformers choose from differently.
    """
    found = {**dict.fromkeys((*_KEYS, *_FIXED)), **_DEFAULTS, **values, "rope_theta": _rope_theta(file, values)}
    dim, heads = found["hidden_size"], found["num_attention_heads"]
    if found["num_key_value_heads"] is None:
        found["num_key_value_heads"] = heads
    if found["head_dim"] is None and isinstance(dim, int) and isinstance(heads, int) and heads:
        found["head_dim"] = dim // heads
    return found


def _rope_theta(file: Path, values: Mapping[str, object]) -> object:
    """The base of plain rotary positions, which stands beside the other keys, in rope_parameters, in rope_scaling, or in several."""
    thetas = {"rope_theta": values["rope_theta"]} if "rope_theta" in values else {}
    for place in ("rope_parameters", "rope_scaling"):
        rope = values.get(place)
        if not isinstance(rope, dict):
            continue
        kind = rope.get("rope_type", rope.get("type"))
        if kind not in ("default", None):
            raise ConfigError(f"{file}: rope_type is {kind!r}", "plain rotary positions")
        if "rope_theta" in rope:
            thetas[f"{place}.rope_theta"] = rope["rope_theta"]
        _check_whole_heads(file, f"{place}.partial_rotary_factor", rope.get("partial_rotary_factor"))
    _check_whole_heads(file, "partial_rotary_factor", values.get("partial_rotary_factor"))
    first = next(iter(thetas.values()), 10000.0)
    if any(theta != first for theta in thetas.values()):
        both = " and ".join(f"{key} is {theta}" for key, theta in thetas.items())
        raise ConfigError(
            f"{file}: {both}", "one value", "write the one that the weights were trained with in all places"
        )
    return first


def _check_whole_heads(file: Path, key: str, factor: object) -> None:
    if factor not in (None, 1):
        raise ConfigError(f"{file}: {key} is {factor!r}", "rotary positions of whole heads, 1.0")


def _check_kind(file: Path, key: str, value: object) -> None:
    """Refuse a value that no model has, which run.toml could not have either."""
    is_flag = key == "tie_word_embeddings"
    if isinstance(value, bool) != is_flag or not isinstance(value, (bool, int, float)):
        kind = "true or false" if is_flag else "a number"
        raise ConfigError(f"{file}: {key} is {json.dumps(value)[:80]}", kind, "download the checkpoint again")
