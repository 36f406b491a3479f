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
        found = _found_numbers(found)
        expected = self.config_json(config)
        for key in _FIXED:
            if found[key] != expected[key]:
                raise ConfigError(
                    f"{file}: {key} is {found[key]!r}", f"{expected[key]!r}", "start from another checkpoint"
                )
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

    def may_be_left_out(self, name: str, config: LlamaConfig) -> bool:
        """True for tables of rotary frequencies, which are computed, and for a tied head, which is the embedding."""
        return name.endswith("rotary_emb.inv_freq") or (config.is_tied and name == "lm_head.weight")


LAYOUT: Final[Layout[LlamaConfig]] = LlamaLayout()


def _found_numbers(values: Mapping[str, object]) -> dict[str, object]:
    """The values of config.json, with the layout's defaults for missing keys."""
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
