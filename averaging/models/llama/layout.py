"""The decoder's families in the layouts that Hugging Face has for them: names of tensors, and config.json.

Only the names differ. Shapes are the same on both sides, and so is the order of a head's values (rotary positions turn its two
halves against each other), so nothing is transposed or permuted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from averaging.models.family import Layout
from averaging.models.llama.config import DecoderConfig
from averaging.models.llama.rope_json import check_kind, rope_json, rope_values
from protocol.errors import ConfigError
from protocol.tensors.model_families import FAMILIES

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
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
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
    "head_dim": "head_dim",
    "intermediate_size": "ffn_dim",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "is_tied",
}
"""Keys of config.json, and the keys of run.toml's [model] that must have the same value."""

_ALL_FIXED: Final[dict[str, object]] = {"hidden_act": "silu", "quantization_config": None}
"""Keys of config.json that must have these values, in each family. They have them where they are missing."""

_ELSEWHERE: Final = {"use_sliding_window": "mistral"}
"""Families that have what others refuse."""

_DEFAULTS: Final[dict[str, object]] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
"""Values of transformers for keys that a config.json lacks. None follows from other keys."""


@dataclass(frozen=True, slots=True)
class DecoderLayout:
    """Names and config.json of one family's layout.

    Attributes:
        model_type: its name there.
        architecture: the class that loads it.
        fixed: keys that must have these values, which transformers takes where they are missing.
        defaults: other values that transformers takes for missing keys.
        names: of parts of a layer, where they differ from Llama's.
        window_key: of the tokens that attention looks back to, if the family has one.
    """

    model_type: str
    architecture: str
    fixed: Mapping[str, object]
    defaults: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    window_key: str | None = None

    def name(self, tensor: str) -> str:
        """The layout's name of one of the decoder's tensors, as averaging/models/llama/config.py names them."""
        if tensor in _TOP_NAMES:
            return _TOP_NAMES[tensor]
        _, layer, part, kind = tensor.split(".")
        return f"model.layers.{layer}.{self.names.get(part, _LAYER_NAMES[part])}.{kind}"

    def config_json(self, config: DecoderConfig, end: int | None = None) -> dict[str, object]:
        """The contents of config.json for a float32 model with this config. `end` is the token that ends a text."""
        window: dict[str, object] = {} if self.window_key is None else {self.window_key: config.window}
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": config.vocab_size,
            "hidden_size": config.dim,
            "intermediate_size": config.ffn_dim,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_size,
            "max_position_embeddings": config.position_tokens,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            **rope_json(config),
            **window,
            **self.fixed,
            "attention_dropout": 0.0,
            "tie_word_embeddings": config.is_tied,
            "bos_token_id": end,
            "eos_token_id": end,
            "pad_token_id": None,
            "torch_dtype": "float32",
        }

    def model_values(self, file: Path, found: Mapping[str, object]) -> dict[str, object]:
        """The values of [model] that follow from a config.json, as transformers reads it. `max_position_tokens` is one of them, and
        `context_tokens` is not.

        Raises:
            ConfigError: a value that this family does not support, or that no model has.
        """
        self._check_fixed(file, found)
        values = {**dict.fromkeys(_KEYS), **_DEFAULTS, **self.defaults, **found}
        dim, heads = values["hidden_size"], values["num_attention_heads"]
        if values["num_key_value_heads"] is None:
            values["num_key_value_heads"] = heads
        if values["head_dim"] is None and isinstance(dim, int) and isinstance(heads, int) and heads:
            values["head_dim"] = dim // heads
        keys = {**_KEYS, "max_position_embeddings": "max_position_tokens"}
        if self.window_key is not None:
            keys[self.window_key] = "window_tokens"
        for key in keys:
            if key != self.window_key or values[key] is not None:
                check_kind(file, key, values[key])
        own = {own: values[key] for key, own in keys.items()}
        return own | rope_values(file, found, own["max_position_tokens"])

    def _check_fixed(self, file: Path, found: Mapping[str, object]) -> None:
        if found.get("model_type") != self.model_type:
            raise ConfigError(
                f"{file}: model_type is {found.get('model_type')!r}",
                f"{self.model_type!r}",
                "set model.family to its family",
            )
        for key, expected in {**_ALL_FIXED, **self.fixed}.items():
            value = found.get(key, expected)
            if value != expected and (key, value) != ("hidden_act", "swish"):
                others = _ELSEWHERE.get(key)
                families = f"family {others} has it" if others else f"no family has another: {', '.join(FAMILIES)}"
                raise ConfigError(
                    f"{file}: {key} is {json.dumps(value)[:80]}",
                    f"{json.dumps(expected)}; {families}",
                    _OTHER_CHECKPOINT,
                )
        kinds = found.get("layer_types")
        if isinstance(kinds, list) and (other := next((kind for kind in kinds if kind != "full_attention"), None)):
            raise ConfigError(f"{file}: layer_types has {other!r}", "layers that are all alike", _OTHER_CHECKPOINT)

    def check_config_json(self, file: Path, found: Mapping[str, object], config: DecoderConfig) -> None:
        """Reject a checkpoint of another model.

        Raises:
            ConfigError: its numbers differ from `config`, or this family does not support it.
        """
        values = self.model_values(file, found)
        del values["max_position_tokens"]  # a run may train on shorter texts and say so
        if config.head_dim is None and follows(values):
            del values["head_dim"]
        own = {key: config.head_size if key == "head_dim" else getattr(config, key) for key in values}
        wrong = [
            f"model.{key} is {_shown(own[key])} and not {_shown(value)}"
            for key, value in values.items()
            if own[key] != value
        ]
        if wrong:
            raise ConfigError(", ".join(wrong), f"what {file} says", "write these values into run.toml's [model]")

    def may_be_left_out(self, name: str, config: DecoderConfig) -> bool:
        """True for tables of rotary frequencies, which are computed, and for a tied head, which is the embedding."""
        return name.endswith("rotary_emb.inv_freq") or (config.is_tied and name == "lm_head.weight")


def follows(values: Mapping[str, object]) -> bool:
    """Whether `head_dim` of these values of [model] is what follows from the others."""
    dim, heads = values["dim"], values["num_heads"]
    return isinstance(dim, int) and isinstance(heads, int) and values["head_dim"] == dim / heads


LAYOUT: Final[Layout[DecoderConfig]] = DecoderLayout(
    "llama", "LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False}
)

_OTHER_CHECKPOINT: Final = "start from another checkpoint"


def _shown(value: object) -> str:
    return "not given" if value is None else json.dumps(value)[:80]
