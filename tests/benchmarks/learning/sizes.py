"""Sizes of models, and how long each trains. A step takes the same tokens however many members share it, as in 2503.09799."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from averaging.models.llama.config import LlamaConfig
from tests.benchmarks.convergence_ways import Regime


@dataclass(frozen=True)
class Size:
    """A model and a length of training.

    Attributes:
        step_tokens: of all members together in a local step; a multiple of eight windows.
        rates: inner learning rates that a sweep begins with, the likeliest in the middle.
        needs_card: too slow for processors.
    """

    name: str
    model: LlamaConfig
    step_tokens: int
    num_steps: int
    rates: tuple[float, float, float]
    needs_card: bool = False

    def longer(self, times: int) -> Size:
        """The same model, trained `times` as long."""
        return self if times == 1 else replace(self, name=f"{self.name} x {times}", num_steps=times * self.num_steps)

    def regime(self, members: int) -> Regime:
        """The same tokens in all, shared by so many members."""
        return Regime(self.name, self.model, members, self.num_steps, self.step_tokens // members, self.rates)


def _model(dim: int, num_layers: int, num_heads: int, ffn_dim: int, context_tokens: int) -> LlamaConfig:
    return LlamaConfig(
        dim=dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        ffn_dim=ffn_dim,
        context_tokens=context_tokens,
        is_tied=False,
    )


QUICK: Final = "0.3M"
SIZES: Final = {
    size.name: size
    for size in (
        Size("0.1M", _model(64, 2, 4, 176, 64), 512, 2_000, (2e-3, 4e-3, 8e-3)),
        Size("0.3M", _model(96, 3, 4, 256, 64), 1024, 2_400, (1e-3, 2e-3, 4e-3)),
        Size("1M", _model(128, 5, 4, 352, 128), 2048, 10_000, (1e-3, 2e-3, 4e-3)),
        Size("3M", _model(256, 4, 4, 640, 128), 4096, 15_000, (1e-3, 2e-3, 4e-3)),
        Size("30M", _model(512, 9, 8, 1408, 512), 65_536, 9_000, (1e-3, 2e-3, 4e-3), needs_card=True),
        Size("136M", _model(1024, 11, 16, 2656, 512), 131_072, 20_800, (5e-4, 1e-3, 2e-3), needs_card=True),
    )
}
"""Up to 0.3M about seven tokens a value, from 1M on twenty. The text is a few MB of bytes, so large models read it many times."""
