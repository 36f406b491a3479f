"""The decoder's blocks (averaging/models/llama/blocks.py), with the switches of MistralConfig."""

from __future__ import annotations

from typing import Final

from averaging.models.llama import blocks

BLOCKS: Final = blocks.BLOCKS
