"""Several peers' decoders trained beside one another in one process: the parameters of all, stacked.

Shapes: M peers, B sequences, T tokens, D values, V vocabulary, N values of a model. One kernel each computes for all peers the values
that peer/models/decoder.py computes for one peer. This takes half the processor time of one peer after another. The optimizer is the
product's own: what it does value by value, or matrix by matrix, it does for each peer by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from averaging.data.assignment import window_starts
from averaging.models.llama.blocks import rotate, rotation_table
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import parts_of
from peer.training.optimizers.optimizer import make_optimizer
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema

CLIP_FLOOR: Final = 1e-6
"""As in torch's clip_grad_norm_."""


class StackedDecoder:
    """M models of one schema on one device. On a card, products are in bfloat16, as the product computes them there."""

    def __init__(self, config: LlamaConfig, anchor_N: torch.Tensor, num_peers: int, device: str = "cpu") -> None:
        self.config = config
        self.schema = model_schema(config)
        self.num_peers = num_peers
        self.device = torch.device(device)
        self.parameters = [
            torch.nn.Parameter(part.to(self.device).expand(num_peers, *part.shape).clone())
            for part in parts_of(anchor_N, self.schema)
        ]
        self._named = dict(zip((spec.name for spec in self.schema.tensors), self.parameters, strict=True))
        self._rotation = rotation_table(config).to(self.device)

    def loss(self, tokens_MBT: torch.Tensor) -> torch.Tensor:
        """The sum over peers of each one's mean loss in nats a token; (M, B, T + 1) int64."""
        tokens_MBT = tokens_MBT.to(self.device)
        inputs, targets = tokens_MBT[..., :-1], tokens_MBT[..., 1:]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu"):
            logits = self._logits(inputs)
        total = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        return total * (self.num_peers / targets.numel())

    def _logits(self, tokens_MBT: torch.Tensor) -> torch.Tensor:
        config, named = self.config, self._named
        num_peers, batch, num_tokens = tokens_MBT.shape
        first_rows = torch.arange(num_peers, device=self.device).view(-1, 1, 1) * config.vocab_size
        table = named["embed.weight"].flatten(0, 1)
        x = functional.embedding(tokens_MBT + first_rows, table).view(num_peers, batch * num_tokens, config.dim)
        for layer in range(config.num_layers):
            name = f"layers.{layer}"
            y = self._norm(x, f"{name}.attn_norm.weight")
            x = x + self._linear(self._mixed(y, name, num_tokens), f"{name}.wo.weight")
            y = self._norm(x, f"{name}.ffn_norm.weight")
            gated = functional.silu(self._linear(y, f"{name}.w_gate.weight")) * self._linear(y, f"{name}.w_up.weight")
            x = x + self._linear(gated, f"{name}.w_down.weight")
        return self._linear(self._norm(x, "norm.weight"), "embed.weight" if config.is_tied else "head.weight")

    def _mixed(self, y: torch.Tensor, name: str, num_tokens: int) -> torch.Tensor:
        """Attention of all peers' sequences, before its output matrix."""
        config = self.config
        q, k, v = (self._linear(y, f"{name}.{part}.weight") for part in ("wq", "wk", "wv"))
        q, k, v = (
            part.view(-1, num_tokens, part.shape[-1] // config.head_size, config.head_size) for part in (q, k, v)
        )
        q, k = rotate(q, self._rotation), rotate(k, self._rotation)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            enable_gqa=config.num_kv_heads != config.num_heads,
        )
        return mixed.transpose(1, 2).reshape(y.shape)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.bmm(x, self._named[name].transpose(1, 2))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], None, self.config.norm_eps) * self._named[name].unsqueeze(1)

    def theta(self) -> torch.Tensor:
        """(M, N) float32 in the machine's memory, a copy."""
        return torch.cat([parameter.detach().flatten(1).cpu() for parameter in self.parameters], dim=1)

    @torch.no_grad()
    def shift(self, shift_MN: torch.Tensor) -> None:
        """Theta <- theta + shift, for each peer its own."""
        rows = [parts_of(shift_N, self.schema) for shift_N in shift_MN]
        for number, parameter in enumerate(self.parameters):
            parameter.add_(torch.stack([row[number] for row in rows]).to(self.device))

    @torch.no_grad()
    def load(self, theta_MN: torch.Tensor) -> None:
        """Theta <- (M, N) float32, for each peer its own."""
        rows = [parts_of(theta_N, self.schema) for theta_N in theta_MN]
        for number, parameter in enumerate(self.parameters):
            parameter.copy_(torch.stack([row[number] for row in rows]))


class Workers:
    """Local training of M peers in step with each other: windows, gradient, clipping and optimizer as in
    peer/training/local_training.py.
    """

    def __init__(
        self,
        config: LlamaConfig,
        inner: InnerSection,
        anchor_N: torch.Tensor,
        text: npt.NDArray[np.uint8] | npt.NDArray[np.uint16],
        seed: int,
        readers: Sequence[Sequence[str]],
        device: str = "cpu",
    ) -> None:
        """`readers`: of each peer the names whose windows it reads; a synchronous run is one peer that reads those of all."""
        self.model = StackedDecoder(config, anchor_N, len(readers), device)
        self._inner = inner
        self._text = text
        self._seed = seed
        self._readers = readers
        self.optimizer = make_optimizer(inner, self.model.schema, self.model.parameters)

    def step(self, number: int, learning_rate: float) -> None:
        """The step at this data position."""
        torch.autograd.backward(self.model.loss(self._windows(number)))
        self._clip()
        self.optimizer.step(learning_rate)
        self.optimizer.zero_grad()

    def _windows(self, number: int) -> torch.Tensor:
        length = self.model.config.context_tokens + 1
        per_reader = self._inner.batch_tokens // self.model.config.context_tokens
        starts = [
            [
                start
                for name in names
                for start in window_starts(self._seed, name, number, per_reader, len(self._text), length)
            ]
            for names in self._readers
        ]
        places = np.array(starts)[..., None] + np.arange(length)
        return torch.from_numpy(self._text[places].astype(np.int64))

    @torch.no_grad()
    def _clip(self) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters if parameter.grad is not None]
        squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
        shares = (self._inner.clip_norm / (squares.sqrt() + CLIP_FLOOR)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(shares.view(-1, *[1] * (gradient.dim() - 1)))
