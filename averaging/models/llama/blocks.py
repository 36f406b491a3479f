"""The Llama decoder's blocks in torch.

Shapes: B sequences, T tokens, D values, H heads, K key-value heads, E values a head, V vocabulary. Sources: RMSNorm 1910.07467;
rotary positions 2104.09864; SwiGLU 2002.05202; grouped queries 2305.13245.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional

from averaging.models.attention import Attention, Documents, causal_attention, isolated_attention
from averaging.models.family import Blocks, Drop, LayerCache, Split
from averaging.models.llama.config import LlamaConfig


class Norm(nn.Module):
    """x / rms(x) times a learned weight; sums in float32, and the result in the type of x."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self._eps = eps

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        if x_BTD.dtype == self.weight.dtype:
            return functional.rms_norm(x_BTD, self.weight.shape, self.weight, self._eps)
        with torch.autocast(x_BTD.device.type, enabled=False):  # else the stream would come out in float32
            return functional.rms_norm(x_BTD, self.weight.shape, self.weight.to(x_BTD.dtype), self._eps)


def rotation_table(config: LlamaConfig) -> torch.Tensor:
    """(T, E / 2, 2) float32: cosine and sine of position x frequency."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.context_tokens, dtype=torch.float32), config.rope_theta**-half)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotate(x_BTHE: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of each head against each other (the Llama layout), in float32; the result has the type of x. The table
    has a row for each position, (T, E / 2, 2), or for each token, (B, T, E / 2, 2).
    """
    rows = table[: x_BTHE.shape[1]] if table.dim() == 3 else table
    cos, sin = rows[..., None, :, 0], rows[..., None, :, 1]
    first, second = x_BTHE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_BTHE.dtype)


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm and added to the stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self._config = config
        self.attention: Attention = causal_attention
        kv_dim = config.num_kv_heads * config.head_dim
        self.attn_norm = Norm(config.dim, config.norm_eps)
        self.wq = nn.Linear(config.dim, config.dim, bias=False)
        self.wk = nn.Linear(config.dim, kv_dim, bias=False)
        self.wv = nn.Linear(config.dim, kv_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)
        self.ffn_norm = Norm(config.dim, config.norm_eps)
        self.w_gate = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.w_up = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.w_down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(
        self,
        x_BTD: torch.Tensor,
        table: torch.Tensor,
        drop: Drop | None = None,
        documents: Documents | None = None,
    ) -> torch.Tensor:
        """(B, T, D) to (B, T, D), causal, and within `documents` if there are some. `table` then has a row for each token."""
        attended = self.attend(self.attn_norm(x_BTD), table, documents)
        x_BTD = x_BTD + (attended if drop is None else drop(attended))
        fed = self.feed(self.ffn_norm(x_BTD))
        return x_BTD + (fed if drop is None else drop(fed))

    def extend(self, x_BTD: torch.Tensor, table: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Like `forward`, for tokens that follow those in the cache, which takes up theirs. After the first call it is one token."""
        config, y_BTD = self._config, self.attn_norm(x_BTD)
        batch, num_tokens, _ = y_BTD.shape
        begin, here = cache.num_tokens, table[cache.num_tokens :]
        q = rotate(self.wq(y_BTD).view(batch, num_tokens, config.num_heads, config.head_dim), here).transpose(1, 2)
        k = rotate(self.wk(y_BTD).view(batch, num_tokens, config.num_kv_heads, config.head_dim), here).transpose(1, 2)
        v = self.wv(y_BTD).view(batch, num_tokens, config.num_kv_heads, config.head_dim).transpose(1, 2)
        k, v = cache.extended(k, v)
        # each key-value head serves a group of query heads; one new token may see all before it
        grouped = q.reshape(batch * config.num_kv_heads, -1, num_tokens, config.head_dim)
        shared = (batch * config.num_kv_heads, 1, begin + num_tokens, config.head_dim)
        groups = (-1, grouped.shape[1], -1, -1)
        k, v = k.reshape(shared).expand(groups), v.reshape(shared).expand(groups)
        mixed = functional.scaled_dot_product_attention(grouped, k, v, is_causal=num_tokens > 1)
        mixed = mixed.reshape(batch, config.num_heads, num_tokens, config.head_dim)
        x_BTD = x_BTD + self.wo(mixed.transpose(1, 2).reshape(batch, num_tokens, config.dim))
        return x_BTD + self.feed(self.ffn_norm(x_BTD))

    def feed(self, y_BTD: torch.Tensor) -> torch.Tensor:
        """Only the feed-forward, (B, T, D) to (B, T, D)."""
        fed: torch.Tensor = self.w_down(functional.silu(self.w_gate(y_BTD)) * self.w_up(y_BTD))
        return fed

    def attend(self, y_BTD: torch.Tensor, table: torch.Tensor, documents: Documents | None = None) -> torch.Tensor:
        """Only the attention, (B, T, D) to (B, T, D), causal."""
        batch, num_tokens, _ = y_BTD.shape
        heads = (batch, num_tokens, -1, self._config.head_dim)  # as many as this process has
        q = rotate(self.wq(y_BTD).view(heads), table).transpose(1, 2)
        k = rotate(self.wk(y_BTD).view(heads), table).transpose(1, 2)
        v = self.wv(y_BTD).view(heads).transpose(1, 2)
        mixed = self.attention(q, k, v) if documents is None else isolated_attention(q, k, v, documents)
        projected: torch.Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, num_tokens, -1))
        return projected


def _embedding(config: LlamaConfig) -> nn.Embedding:
    return nn.Embedding(config.vocab_size, config.dim)


def _layer(config: LlamaConfig, number: int) -> Layer:
    return Layer(config)


def _norm(config: LlamaConfig) -> Norm:
    return Norm(config.dim, config.norm_eps)


SPLITS: Final[dict[str, Split]] = {
    "wq": "rows",
    "wk": "rows",
    "wv": "rows",
    "wo": "columns",
    "w_gate": "rows",
    "w_up": "rows",
    "w_down": "columns",
}

BLOCKS: Final = Blocks(_embedding, _layer, _norm, rotation_table, SPLITS, ("attn_norm", "ffn_norm"))
