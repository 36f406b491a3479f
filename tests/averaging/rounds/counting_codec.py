"""A codec that tells how much was decoded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.averaging.rounds.round_world import CODEC


@dataclass
class CountingCodec:
    """float32 as it is, which remembers how many values were decoded."""

    name: str = "fp32"
    num_decoded: int = 0
    leaves_out = False
    encode = staticmethod(CODEC.encode)
    head_bytes = staticmethod(CODEC.head_bytes)
    encoded_bytes = staticmethod(CODEC.encoded_bytes)

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        self.num_decoded += num_elements
        return CODEC.decode(data, num_elements)
