"""The bundled decoder in the layout that Hugging Face calls Llama: names of tensors, config.json, and the tokenizer's files.

Shapes are the same on both sides, and so is the order of a head's values (rotary positions turn its two halves against each
other), so nothing is transposed or permuted: only the names differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from averaging.data.tokenizer import END, VOCAB_SIZE
from protocol.tensors.decoder_schema import DecoderConfig

_END_TEXT: Final = "<|end|>"
"""How the byte vocabulary's end mark is written as text."""

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
    """The Llama layout's name of one of the decoder's tensors, as protocol/tensors/decoder_schema.py names them."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


@dataclass(frozen=True, slots=True)
class LlamaTokenizer:
    """A tokenizer.json, and the token that stands between documents: its number and its text. It both begins and ends one."""

    data: bytes
    end: int
    end_text: str


def byte_tokenizer(config: DecoderConfig) -> LlamaTokenizer | None:
    """The byte vocabulary; None where the model cannot say every byte and the end mark."""
    if config.vocab_size < VOCAB_SIZE:
        return None
    return LlamaTokenizer((json.dumps(_byte_vocabulary(), indent=2) + "\n").encode(), END, _END_TEXT)


def file_tokenizer(data: bytes, end: int) -> LlamaTokenizer | None:
    """The tokenizer of a tokenizer.json; None where that names no token with the number `end`."""
    end_text = next((text for text, number in token_numbers(data) if number == end), None)
    return None if end_text is None else LlamaTokenizer(data, end, end_text)


def token_numbers(data: bytes) -> Iterator[tuple[str, int]]:
    """The tokens of a tokenizer.json and their numbers, as far as it names them; those that were added to the vocabulary first."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    model = values.get("model") if isinstance(values, dict) else None
    added = values.get("added_tokens") if isinstance(values, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and isinstance(token.get("content"), str) and isinstance(token.get("id"), int):
            yield token["content"], token["id"]
    if isinstance(vocabulary, dict):
        yield from ((text, number) for text, number in vocabulary.items() if isinstance(number, int))
    elif isinstance(vocabulary, list):  # of pieces with their scores: the number is the place
        for number, piece in enumerate(vocabulary):
            if isinstance(piece, list) and piece and isinstance(piece[0], str):
                yield piece[0], number


def llama_config(config: DecoderConfig, end: int | None = None) -> dict[str, object]:
    """What config.json says of a float32 model with these numbers, and of `end`, the token that ends a text."""
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


def generation_config(config: DecoderConfig, end: int) -> dict[str, object]:
    """What generation_config.json says: a text ends at the end mark, and the model was never shown more than its context."""
    return {"bos_token_id": end, "eos_token_id": end, "max_length": config.context_tokens}


def _byte_vocabulary() -> dict[str, object]:
    """What tokenizer.json says of it: byte-level pieces without a single merge, each byte its own number."""
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


def tokenizer_config(config: DecoderConfig, end_text: str) -> dict[str, object]:
    """What tokenizer_config.json says beside a tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end_text,
        "eos_token": end_text,
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
