"""Qwen2's layout: Llama's, with biases."""

from __future__ import annotations

from typing import Final

from averaging.models.family import Layout
from averaging.models.llama.config import DecoderConfig
from averaging.models.llama.layout import DecoderLayout

LAYOUT: Final[Layout[DecoderConfig]] = DecoderLayout(
    "qwen2",
    "Qwen2ForCausalLM",
    fixed={"use_sliding_window": False},
    defaults={"num_key_value_heads": 32, "max_position_embeddings": 32768},
)
