"""The decoder's blocks in torch, with the switches of all families that are made of it.

Shapes: B sequences, T tokens, D values, H heads, K key-value heads, E values a head, V vocabulary. Sources: RMSNorm 1910.07467;
rotary positions 2104.09864; SwiGLU 2002.05202; grouped queries 2305.13245; norms of queries and keys of each head Qwen3 2505.09388,
of all heads and norms after attention and feed-forward OLMo 2 2501.00656; biases Qwen2 2407.10671.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from averaging.models.attention import Attention, Documents, WindowedAttention, causal_attention, isolated_attention
from averaging.models.family import Blocks, Drop, LayerCache, Split, Used
from averaging.models.llama.config import DecoderConfig
from averaging.models.llama.rotary import frequencies


class Norm(nn.Module):
    """x / rms(x) times a learned weight; sums in float32, and the result in the type of x.

    Attributes:
        used: the weight as a pass uses it, which a replica may replace where each process norms some of the heads.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.used: Used = _as_it_is
        self._eps = eps

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D), or (B, T, H, E) to (B, T, H, E)."""
        weight = self.used(self.weight)
        if x_BTD.dtype == weight.dtype:
            return functional.rms_norm(x_BTD, weight.shape, weight, self._eps)
        with torch.autocast(x_BTD.device.type, enabled=False):  # else the stream would come out in float32
            return functional.rms_norm(x_BTD, weight.shape, weight.to(x_BTD.dtype), self._eps)


def _as_it_is(weight: torch.Tensor) -> torch.Tensor:
    return weight


def rotation_table(config: DecoderConfig) -> torch.Tensor:
    """(T, E / 2, 2) float32: cosine and sine of position x frequency, times the factor of their scaling."""
    frequencies_E, factor = frequencies(config)
    angles = torch.outer(torch.arange(config.context_tokens, dtype=torch.float32), frequencies_E)
    table = torch.stack([angles.cos(), angles.sin()], dim=-1)
    return table if factor == 1.0 else table * factor


def rotate(x_BTHE: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of each head against each other (the Llama layout), in float32; the result has the type of x. The table
    has a row for each position, (T, E / 2, 2), or for each token, (B, T, E / 2, 2).
    """
    rows = table[: x_BTHE.shape[1]] if table.dim() == 3 else table
    cos, sin = rows[..., None, :, 0], rows[..., None, :, 1]
    first, second = x_BTHE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x_BTHE.dtype)


class Layer(nn.Module):
    """Attention and feed-forward, each with a norm before or after it, and added to the stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._config = config
        self.attention: Attention = causal_attention if config.window is None else WindowedAttention(config.window)
        dim, kv_dim, has_biases = config.dim, config.kv_dim, config.has_qkv_biases
        self.attn_norm = Norm(dim, config.norm_eps)
        self.wq = nn.Linear(dim, config.attention_dim, bias=has_biases)
        self.wk = nn.Linear(dim, kv_dim, bias=has_biases)
        self.wv = nn.Linear(dim, kv_dim, bias=has_biases)
        self.q_norm, self.k_norm = _qk_norms(config)
        self.wo = nn.Linear(config.attention_dim, dim, bias=False)
        self.ffn_norm = Norm(dim, config.norm_eps)
        self.w_gate = nn.Linear(dim, config.ffn_dim, bias=False)
        self.w_up = nn.Linear(dim, config.ffn_dim, bias=False)
        self.w_down = nn.Linear(config.ffn_dim, dim, bias=False)

    def forward(
        self,
        x_BTD: torch.Tensor,
        table: torch.Tensor,
        drop: Drop | None = None,
        documents: Documents | None = None,
    ) -> torch.Tensor:
        """(B, T, D) to (B, T, D), causal, and within `documents` if there are some. `table` then has a row for each token."""
        x_BTD = self._added(x_BTD, self.attn_norm, partial(self.attend, table=table, documents=documents), drop)
        return self._added(x_BTD, self.ffn_norm, self.feed, drop)

    def extend(self, x_BTD: torch.Tensor, table: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Like `forward`, for tokens that follow those in the cache, which takes up theirs. After the first call it is one token."""
        x_BTD = self._added(x_BTD, self.attn_norm, partial(self._attend_on, table=table, cache=cache), None)
        return self._added(x_BTD, self.ffn_norm, self.feed, None)

    def feed(self, y_BTD: torch.Tensor) -> torch.Tensor:
        """Only the feed-forward, (B, T, D) to (B, T, D)."""
        fed: torch.Tensor = self.w_down(functional.silu(self.w_gate(y_BTD)) * self.w_up(y_BTD))
        return fed

    def attend(self, y_BTD: torch.Tensor, table: torch.Tensor, documents: Documents | None = None) -> torch.Tensor:
        """Only the attention, (B, T, D) to (B, T, D), causal."""
        q, k, v = self._heads(y_BTD, table)
        if documents is None:
            return self._projected(self.attention(q, k, v))
        return self._projected(isolated_attention(q, k, v, documents, self._config.window))

    def _added(
        self, x_BTD: torch.Tensor, norm: nn.Module, part: Callable[[torch.Tensor], torch.Tensor], drop: Drop | None
    ) -> torch.Tensor:
        added = norm(part(x_BTD)) if self._config.norms_results else part(norm(x_BTD))
        return x_BTD + (added if drop is None else drop(added))

    def _attend_on(self, y_BTD: torch.Tensor, table: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        q, k, v = self._heads(y_BTD, table[cache.num_tokens :])
        k, v = cache.extended(k, v)
        if q.shape[2] > 1:
            return self._projected(self.attention(q, k, v))
        if self._config.window is not None:
            k, v = k[:, :, -self._config.window :], v[:, :, -self._config.window :]
        # each key-value head serves a group of query heads; the new token may see all before it
        batch, kv_heads, num_tokens, size = k.shape
        grouped = q.reshape(batch * kv_heads, -1, 1, size)
        k, v = (x.reshape(batch * kv_heads, 1, num_tokens, size).expand(-1, grouped.shape[1], -1, -1) for x in (k, v))
        return self._projected(functional.scaled_dot_product_attention(grouped, k, v).reshape(q.shape))

    def _heads(self, y_BTD: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (B, H, T, E), keys and values (B, K, T, E), rotated, with as many heads as this process has."""
        heads = (*y_BTD.shape[:2], -1, self._config.head_size)
        q = rotate(_normed(self.q_norm, self.wq(y_BTD)).view(heads), table).transpose(1, 2)
        k = rotate(_normed(self.k_norm, self.wk(y_BTD)).view(heads), table).transpose(1, 2)
        return q, k, self.wv(y_BTD).view(heads).transpose(1, 2)

    def _projected(self, mixed_BHTE: torch.Tensor) -> torch.Tensor:
        """The attention's output (B, T, D)."""
        projected: torch.Tensor = self.wo(mixed_BHTE.transpose(1, 2).flatten(2))
        return projected


def _qk_norms(config: DecoderConfig) -> tuple[Norm | None, Norm | None]:
    """Of queries and of keys: of one head each, or of all of them together."""
    if config.qk_norm == "none":
        return None, None
    is_each = config.qk_norm == "head"
    sizes = (config.head_size, config.head_size) if is_each else (config.attention_dim, config.kv_dim)
    return Norm(sizes[0], config.norm_eps), Norm(sizes[1], config.norm_eps)


def _normed(norm: Norm | None, projected_BTX: torch.Tensor) -> torch.Tensor:
    """Queries or keys of all heads, or of each head by itself, normed."""
    if norm is None:
        return projected_BTX
    normed: torch.Tensor = norm(projected_BTX.view(*projected_BTX.shape[:2], -1, norm.weight.shape[0]))
    return normed


def _embedding(config: DecoderConfig) -> nn.Embedding:
    return nn.Embedding(config.vocab_size, config.dim)


def _layer(config: DecoderConfig, number: int) -> Layer:
    return Layer(config)


def _norm(config: DecoderConfig) -> Norm:
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

BLOCKS: Final = Blocks(
    _embedding, _layer, _norm, rotation_table, SPLITS, ("attn_norm", "ffn_norm"), ("q_norm", "k_norm")
)
