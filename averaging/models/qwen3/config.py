"""Qwen3's numbers (2505.09388, section 2): Llama with norms of queries and keys of each head, without any tensor library."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from averaging.models.llama.config import DecoderConfig, QkNorm


class Qwen3Config(DecoderConfig):
    """Sizes of a dense Qwen3: a Llama with norms of the queries and keys of each head."""

    qk_norm: ClassVar[QkNorm] = "head"

    family: Literal["qwen3"]
    """The model family, a folder of `averaging/models`."""


CONFIG: Final = Qwen3Config
