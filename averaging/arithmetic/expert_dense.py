"""One expert of a run as an ordinary decoder: the trunk with the expert's feed-forward beside its own in every layer.

Both feed-forwards get the same input and their outputs are added. So they equal one feed-forward of their summed width: rows of
gate and up one after the other, columns of down side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from averaging.models.llama.config import LlamaConfig
from protocol.errors import ConfigError
from protocol.tensors.expert_schema import MixtureConfig

_JOINED_BY: Final = (("w_gate", 0), ("w_up", 0), ("w_down", 1))


def dense_config(decoder: LlamaConfig, mixture: MixtureConfig) -> LlamaConfig:
    """Configuration of an expert's own decoder."""
    return decoder.model_copy(update={"ffn_dim": decoder.ffn_dim + mixture.ffn_dim})


def dense_tensors(
    decoder: LlamaConfig, mixture: MixtureConfig, tensors: Mapping[str, torch.Tensor], expert: int
) -> dict[str, torch.Tensor]:
    """Tensors of an expert's own decoder, named as in averaging/models/llama/config.py.

    Args:
        tensors: of the trunk and the experts, named as in protocol/tensors/expert_schema.py.

    Raises:
        ConfigError: the run has no such expert.
    """
    if not 0 <= expert < mixture.num_experts:
        found = f"expert {expert} of a run of {mixture.num_experts}"
        raise ConfigError(found, f"0 to {mixture.num_experts - 1}", "name one of those with --expert")
    dense = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(decoder.num_layers):
        for part, dim in _JOINED_BY:
            name = f"layers.{layer}.{part}.weight"
            own = tensors[f"layers.{layer}.experts.{expert}.{part}.weight"]
            dense[name] = torch.cat([tensors[name], own], dim=dim)
    return dense
