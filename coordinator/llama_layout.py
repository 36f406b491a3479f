"""The bundled decoder in the layout that Hugging Face calls Llama: names of tensors, config.json, and the byte tokenizer as JSON.

Shapes are the same on both sides, and so is the order of a head's values (rotary positions turn its two halves against each
other), so nothing is transposed or permuted: only the names differ.
"""

from __future__ import annotations

from typing import Final

from averaging.data.tokenizer import END, VOCAB_SIZE
from protocol.decoder_schema import DecoderConfig

_END_TEXT: Final = "<|end|>"
"""How the end mark is written as text. It stands between documents, so it both begins and ends one."""

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


def llama_name(name: str) -> str:
    """The Llama layout's name of one of the decoder's tensors, as protocol/decoder_schema.py names them."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


def has_byte_vocabulary(config: DecoderConfig) -> bool:
    """Whether the model can say every byte and the end mark."""
    return config.vocab_size >= VOCAB_SIZE


def llama_config(config: DecoderConfig) -> dict[str, object]:
    """What config.json says of a float32 model with these numbers."""
    end = END if has_byte_vocabulary(config) else None
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


def generation_config(config: DecoderConfig) -> dict[str, object]:
    """What generation_config.json says: a text ends at the end mark, and the model was never shown more than its context."""
    return {"bos_token_id": END, "eos_token_id": END, "max_length": config.context_tokens}


def byte_tokenizer() -> dict[str, object]:
    """What tokenizer.json says of the byte vocabulary: byte-level pieces without a single merge, each byte its own number."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {
        "id": END,
        "content": _END_TEXT,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {letter: byte for byte, letter in enumerate(_byte_letters())},
            "merges": [],
        },
    }


def tokenizer_config(config: DecoderConfig) -> dict[str, object]:
    """What tokenizer_config.json says beside `byte_tokenizer`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _END_TEXT,
        "eos_token": _END_TEXT,
        "model_max_length": config.context_tokens,
        "clean_up_tokenization_spaces": False,
    }


def _byte_letters() -> list[str]:
    """A printable letter for each byte, as byte-level vocabularies since GPT-2 write them: itself where it has one, else the next
    letter from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]
