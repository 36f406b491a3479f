"""Frequencies of rotary positions, and how they are stretched for contexts longer than the model was first trained on.

E values a head. Sources: RoFormer 2104.09864; linear 2306.15595; Llama 3.1 2407.21783 (transformers' `llama3`); YaRN 2309.00071.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch

from averaging.models.llama.config import DecoderConfig
from protocol.errors import LocalProtocolError


def frequencies(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    """(E / 2,) float32: radians that each pair of values turns from one position to the next; and the factor of the rotated values.

    Raises:
        LocalProtocolError: a scaling without its original context.
    """
    size = config.head_size
    plain = config.rope_theta ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
    match config.rope_scaling:
        case "none":
            return plain, 1.0
        case "linear":
            return plain / config.rope_factor, 1.0
        case "llama3":
            return _llama3(config, plain), 1.0
        case "yarn":
            factor = config.rope_attention_factor
            return _yarn(config, plain), 0.1 * log(config.rope_factor) + 1.0 if factor is None else factor


def _original_tokens(config: DecoderConfig) -> int:
    if config.rope_original_tokens is None:
        raise LocalProtocolError(f"rope_scaling {config.rope_scaling}", "with rope_original_tokens")
    return config.rope_original_tokens


def _llama3(config: DecoderConfig, plain: torch.Tensor) -> torch.Tensor:
    """Stretched are rotations that turn seldom in the original context; those between are mixed by how often they turn."""
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    turns = _original_tokens(config) * plain / (2 * pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * plain / config.rope_factor + kept * plain


def _yarn(config: DecoderConfig, plain: torch.Tensor) -> torch.Tensor:
    """As `_llama3`, with bounds on the number of the pair instead of on its turns (2309.00071, equation 23; transformers rounds both
    bounds outwards).
    """
    original, size = _original_tokens(config), config.head_size

    def pair(turns: float) -> float:
        return size * log(original / (turns * 2 * pi)) / (2 * log(config.rope_theta))

    first = max(floor(pair(config.rope_beta_fast)), 0)
    last = min(ceil(pair(config.rope_beta_slow)), size - 1)
    width = last - first or 0.001
    stretched = ((torch.arange(size // 2, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return plain / config.rope_factor * stretched + plain * (1 - stretched)
