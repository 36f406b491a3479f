"""Mistral's numbers (Mistral 7B, 2310.06825): Llama with a sliding window, without any tensor library."""

from __future__ import annotations

from typing import Final, Literal

from averaging.models.llama.config import DecoderConfig
from protocol.tensors.model_config import Size


class MistralConfig(DecoderConfig):
    """Sizes of a Mistral: a Llama whose tokens may see only those shortly before them."""

    window_tokens: Size | None = None
    """Sliding window: tokens that attention looks back to, the own one included. All tokens before if not given."""

    family: Literal["mistral"]
    """The model family, a folder of `averaging/models`."""

    @property
    def window(self) -> int | None:
        """Tokens that attention looks back to, the own one included; None for all."""
        return self.window_tokens


CONFIG: Final = MistralConfig
