"""Mistral's layout: Llama's, with a sliding window."""

from __future__ import annotations

from typing import Final

from averaging.models.family import Layout
from averaging.models.llama.config import DecoderConfig
from averaging.models.llama.layout import DecoderLayout

LAYOUT: Final[Layout[DecoderConfig]] = DecoderLayout(
    "mistral",
    "MistralForCausalLM",
    fixed={},
    defaults={"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    window_key="sliding_window",
)
