"""The bundled decoder in torch. Its parameters have the names and shapes of protocol/tensors/decoder_schema.py.

Shapes: B sequences, T tokens, D values, H heads, K key-value heads, E values a head, V vocabulary. Sources: RMSNorm 1910.07467;
rotary positions 2104.09864; SwiGLU 2002.05202; grouped queries 2305.13245.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from protocol.errors import LocalProtocolError
from protocol.tensors.decoder_schema import DecoderConfig
from protocol.tensors.tensor_schema import TensorSchema


class Norm(nn.Module):
    """x / rms(x) times a learned weight, in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self._eps = eps

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        return functional.rms_norm(x_BTD, self.weight.shape, self.weight, self._eps)


def rotation_table(config: DecoderConfig) -> torch.Tensor:
    """(T, E / 2, 2) float32: cosine and sine of position x frequency."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.context_tokens, dtype=torch.float32), config.rope_theta**-half)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotate(x_BTHE: torch.Tensor, table_TE2: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of each head against each other (the Llama layout)."""
    num_tokens = x_BTHE.shape[1]
    cos, sin = table_TE2[:num_tokens, None, :, 0], table_TE2[:num_tokens, None, :, 1]
    first, second = x_BTHE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._config = config
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

    def forward(self, x_BTD: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D), causal."""
        x_BTD = x_BTD + self.attend(self.attn_norm(x_BTD), table)
        return x_BTD + self.feed(self.ffn_norm(x_BTD))

    def feed(self, y_BTD: torch.Tensor) -> torch.Tensor:
        """The feed-forward alone, (B, T, D) to (B, T, D)."""
        fed: torch.Tensor = self.w_down(functional.silu(self.w_gate(y_BTD)) * self.w_up(y_BTD))
        return fed

    def attend(self, y_BTD: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """The attention alone, (B, T, D) to (B, T, D), causal."""
        config = self._config
        batch, num_tokens, _ = y_BTD.shape
        q = rotate(self.wq(y_BTD).view(batch, num_tokens, config.num_heads, config.head_dim), table).transpose(1, 2)
        k = rotate(self.wk(y_BTD).view(batch, num_tokens, config.num_kv_heads, config.head_dim), table).transpose(1, 2)
        v = self.wv(y_BTD).view(batch, num_tokens, config.num_kv_heads, config.head_dim).transpose(1, 2)
        repeats = config.num_heads // config.num_kv_heads
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: torch.Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, num_tokens, config.dim))
        return projected


class Decoder(nn.Module):
    """Tokens to logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = Norm(config.dim, config.norm_eps)
        self.head = None if config.is_tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer("rotation", rotation_table(config), persistent=False)
        self.rotation: torch.Tensor

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """(B, T) int64 to (B, T, V) logits."""
        x_BTD = self.embed(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, self.rotation)
        weight = self.embed.weight if self.head is None else self.head.weight
        return functional.linear(self.norm(x_BTD), weight)


def parameters_in_order(model: nn.Module, schema: TensorSchema) -> list[nn.Parameter]:
    """The model's parameters in the schema's order.

    Raises:
        LocalProtocolError: the model and the schema disagree.
    """
    named = dict(model.named_parameters())
    if set(named) != {spec.name for spec in schema.tensors}:
        raise LocalProtocolError(f"model parameters {sorted(named)}", "those of the schema")
    ordered = [named[spec.name] for spec in schema.tensors]
    for spec, parameter in zip(schema.tensors, ordered, strict=True):
        if tuple(parameter.shape) != spec.shape:
            raise LocalProtocolError(f"{spec.name} of shape {tuple(parameter.shape)}", f"{spec.shape}")
    return ordered


def parts_of(flat_N: torch.Tensor, schema: TensorSchema) -> list[torch.Tensor]:
    """Views of a (N,) vector, one of each tensor's shape, in the schema's order.

    Raises:
        LocalProtocolError: the vector has another length than the schema.
    """
    if flat_N.numel() != schema.num_elements:
        raise LocalProtocolError(f"a vector of {flat_N.numel()} values", f"{schema.num_elements}")
    parts = torch.split(flat_N, [spec.num_elements for spec in schema.tensors])
    return [part.view(spec.shape) for part, spec in zip(parts, schema.tensors, strict=True)]


def load_flat(model: nn.Module, schema: TensorSchema, flat_N: torch.Tensor) -> None:
    """Set all parameters from a (N,) float32 vector. Raises as `parts_of`."""
    with torch.no_grad():
        for parameter, part in zip(parameters_in_order(model, schema), parts_of(flat_N, schema), strict=True):
            parameter.copy_(part)
