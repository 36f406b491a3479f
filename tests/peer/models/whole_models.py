"""A model from its flat vector, and a text from its flat vector, in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.data.tokenizer import ByteTokenizer
from averaging.models.llama.config import LlamaConfig
from peer.models.decode_text import TextTokenizer, decoded, prompt_text, prompt_tokens, sample_tokens
from peer.models.decoder import load_flat
from peer.models.mixture import MixtureDecoder
from peer.models.sampling import Sampling
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import ModelConfig

BYTES = ByteTokenizer()


def holder_model(
    decoder: LlamaConfig, mixture: MixtureConfig, experts: Sequence[int], flat_N: torch.Tensor
) -> MixtureDecoder:
    """A peer's model from its flat vector, (N,) float32: the trunk, then its experts."""
    model = MixtureDecoder(decoder, mixture, experts)
    load_flat(model, held_units(decoder, mixture, experts).whole, flat_N)
    return model


def sample_text(
    config: ModelConfig, flat_N: torch.Tensor, *, prompt: str, sampling: Sampling, tokenizer: TextTokenizer = BYTES
) -> str:
    """The prompt and its sampled continuation."""
    begin = prompt_tokens(prompt, tokenizer)
    sampled = sample_tokens(config, flat_N, prompt=begin, sampling=sampling, tokenizer=tokenizer)
    return prompt_text(prompt) + "".join(decoded(sampled, begin, tokenizer))
