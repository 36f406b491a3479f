"""Qwen3's layout: Llama's, with norms of queries and keys."""

from __future__ import annotations

from typing import Final

from averaging.models.family import Layout
from averaging.models.llama.config import DecoderConfig
from averaging.models.llama.layout import DecoderLayout

LAYOUT: Final[Layout[DecoderConfig]] = DecoderLayout(
    "qwen3",
    "Qwen3ForCausalLM",
    fixed={"attention_bias": False, "use_sliding_window": False},
    defaults={"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768},
)
