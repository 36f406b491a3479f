"""OLMo 2's layout: Llama's, with norms of other names."""

from __future__ import annotations

from typing import Final

from averaging.models.family import Layout
from averaging.models.llama.config import DecoderConfig
from averaging.models.llama.layout import DecoderLayout

LAYOUT: Final[Layout[DecoderConfig]] = DecoderLayout(
    "olmo2",
    "Olmo2ForCausalLM",
    fixed={"attention_bias": False},
    defaults={"rms_norm_eps": 1e-5},
    names={"attn_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm"},
)
