"""One stage of a model in torch: tokens or activations in, activations or logits out.

Its parameters have the names and shapes of protocol/tensors/stage_schema.py. It runs the same operations in the same order as the
whole decoder: all stages one after another give the same bits. Optional dropout acts on the values that each layer adds to the
stream (GPT-2's residual dropout), with masks from a seed in the micro-batch's identity.

Shapes: as peer/models/decoder.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import nn

from averaging.models.family import blocks_of
from peer.models.decoder import ALL_COUNT, LossMarks, Spine
from protocol.errors import ConfigError, RemoteProtocolError
from protocol.tensors.stage_schema import StageMap

_LEVELS: Final = 1 << 16


class Masks:
    """Dropout by integers: the same masks on every machine, device and release of torch.

    Args:
        share: of values that are dropped, to the nearest of 65,536 levels.
        seed: of one micro-batch at one stage (protocol/pipeline/micro_batch.py).
    """

    def __init__(self, share: float, seed: int) -> None:
        self._dropped = round(share * _LEVELS)
        self._seed = seed
        self._drawn = 0

    def copy_for_repeat(self) -> Masks:
        """Masks that draw from here on what these draw."""
        copy = Masks(0.0, self._seed)
        copy._dropped, copy._drawn = self._dropped, self._drawn
        return copy

    def __call__(self, added_BTD: torch.Tensor) -> torch.Tensor:
        """Drop values and scale the rest so that the mean stays. Every call draws another mask, in the order of the calls."""
        self._drawn += 1
        if not self._dropped:
            return added_BTD
        num_values = added_BTD.numel()
        raw = np.random.PCG64([self._seed, self._drawn]).random_raw(-(-num_values // 4)).astype("<u8")
        kept = torch.from_numpy(raw.view("<u2")[:num_values] >= np.uint16(self._dropped)).view(added_BTD.shape)
        return added_BTD * (kept.to(added_BTD.device, added_BTD.dtype) * (_LEVELS / (_LEVELS - self._dropped)))


class StageDecoder(Spine):
    """The layers of one stage, with the embedding at the first stage, and norm and head at the last.

    Args:
        dropout: share of the layers' added values that is dropped, 0 for none.

    Raises:
        ConfigError: a share out of range.
    """

    def __init__(self, stages: StageMap, stage: int, *, dropout: float = 0.0) -> None:
        if not 0.0 <= dropout < 1.0:
            raise ConfigError(f"dropout {dropout}", "at least 0 and less than 1")
        config, numbers, make = stages.decoder, range(*stages.span(stage)), blocks_of(stages.decoder).layer
        super().__init__(
            config,
            lambda: nn.ModuleDict({str(number): make(config, number) for number in numbers}),
            is_first=stages.is_first(stage),
            is_last=stages.is_last(stage),
        )
        self.stages, self.stage, self._dropout = stages, stage, dropout
        self.is_first, self.is_last = stages.is_first(stage), stages.is_last(stage)

    def forward(self, arrived: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """(B, T) int64 at the first stage, else (B, T, D), to (B, T, V) logits at the last one, else (B, T, D).

        Args:
            seed: of the micro-batch at this stage; only dropout uses it.
        """
        return self.run(arrived, Masks(self._dropout, seed))

    def loss(
        self, arrived: torch.Tensor, targets_BT: torch.Tensor, seed: int = 0, marks: LossMarks = ALL_COUNT
    ) -> torch.Tensor:
        """At the last stage: like `forward`, to the mean cross-entropy with the next tokens, in nats: a scalar.

        Raises:
            LocalProtocolError: another stage.
        """
        return self.loss_of(arrived, targets_BT, Masks(self._dropout, seed), marks=marks)

    def require_input(self, arrived: torch.Tensor) -> None:
        """Check data from another peer before computing with it.

        Raises:
            RemoteProtocolError: tokens or activations of a wrong shape or dtype, out of range, or not finite.
        """
        config = self.stages.decoder
        kind, dims = ("tokens", 2) if self.is_first else ("activations", 3)
        is_dtype = arrived.dtype == torch.int64 if self.is_first else arrived.dtype.is_floating_point
        if arrived.dim() != dims or not is_dtype or not 1 <= arrived.shape[1] <= config.context_tokens:
            raise RemoteProtocolError(
                f"{kind} of shape {tuple(arrived.shape)} in {arrived.dtype}", _expected_input(self.is_first, config.dim)
            )
        if self.is_first:
            if arrived.numel() == 0 or not 0 <= int(arrived.min()) <= int(arrived.max()) < config.vocab_size:
                raise RemoteProtocolError(
                    "tokens that the vocabulary has not", f"0 to {config.vocab_size - 1}, one at least"
                )
        elif arrived.numel() == 0 or arrived.shape[2] != config.dim or not bool(torch.isfinite(arrived).all()):
            raise RemoteProtocolError(
                f"activations of shape {tuple(arrived.shape)}, or some that are not finite",
                f"finite ones of {config.dim} values a token",
            )


def _expected_input(is_first: bool, dim: int) -> str:
    return "(sequences, tokens) in int64" if is_first else f"(sequences, tokens, {dim}) in a float type"
