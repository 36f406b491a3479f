"""Qwen2's numbers (2407.10671, section 2.2): Llama with biases of queries, keys and values, without any tensor library."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from averaging.models.llama.config import DecoderConfig


class Qwen2Config(DecoderConfig):
    """Sizes of a Qwen2 or Qwen2.5: a Llama with biases of queries, keys and values."""

    has_qkv_biases: ClassVar[bool] = True

    family: Literal["qwen2"]
    """The model family, a folder of `averaging/models`."""


CONFIG: Final = Qwen2Config
