"""The loop that a trainer is compared with: a Llama decoder of the same numbers without anything around it.

Query, key and value are one product, as are gate and up. Queries are grouped without copies, the optimizer is torch's own in one
kernel, the loss is chunked like the product's, and on a card every layer is compiled. It has no windows of text and no counters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

from averaging.models.llama.blocks import rotate, rotation_table
from averaging.models.llama.config import LlamaConfig
from peer.models.chunked_loss import chunked_cross_entropy


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        kv_dim = config.num_kv_heads * config.head_size
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.wqkv = nn.Linear(config.dim, config.dim + 2 * kv_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)
        self.feed_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.w_up = nn.Linear(config.dim, 2 * config.ffn_dim, bias=False)
        self.w_down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x_BTD: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        config = self.config
        batch, num_tokens, dim = x_BTD.shape
        kv_dim = config.num_kv_heads * config.head_size
        q, k, v = self.wqkv(self.norm(x_BTD)).split((dim, kv_dim, kv_dim), dim=-1)
        q = rotate(q.view(batch, num_tokens, -1, config.head_size), table).transpose(1, 2)
        k = rotate(k.view(batch, num_tokens, -1, config.head_size), table).transpose(1, 2)
        v = v.view(batch, num_tokens, -1, config.head_size).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=config.num_kv_heads < config.num_heads
        )
        x_BTD = x_BTD + self.wo(mixed.transpose(1, 2).reshape(batch, num_tokens, dim))
        gate, up = self.w_up(self.feed_norm(x_BTD)).chunk(2, dim=-1)
        found: torch.Tensor = x_BTD + self.w_down(functional.silu(gate) * up)
        return found


class TightDecoder(nn.Module):
    """Tokens to the mean loss."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.register_buffer("table", rotation_table(config), persistent=False)
        self.table: torch.Tensor
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """(B, T) int64 and the next tokens to a scalar."""
        x_BTD = self.embed(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, self.table)
        return chunked_cross_entropy(self.norm(x_BTD), self.embed.weight, targets_BT)


def tight_step(config: LlamaConfig, device: torch.device, sequences: int, micro_batch: int) -> Callable[[], None]:
    """One step of so many sequences, of noise that lies on the device already."""
    model = TightDecoder(config).to(device)
    if device.type == "cuda":
        for layer in model.layers:
            layer.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    narrow = torch.autocast(device.type, dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()
    tokens_BT = torch.randint(config.vocab_size, (sequences, config.context_tokens + 1), device=device)

    def step() -> None:
        for begin in range(0, sequences, micro_batch):
            part_BT = tokens_BT[begin : begin + micro_batch]
            with narrow:
                loss = model(part_BT[:, :-1], part_BT[:, 1:])
            (loss * (len(part_BT) / sequences)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
