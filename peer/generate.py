"""What the model writes: sampling from a parameter vector."""

from __future__ import annotations

import numpy as np
import torch

from averaging.data.tokenizer import END, decode_tokens
from peer.model import Decoder, load_flat
from protocol.decoder_schema import DecoderConfig, decoder_schema


def sample_text(
    config: DecoderConfig, flat_N: torch.Tensor, *, prompt: str, num_bytes: int, seed: int, temperature: float = 0.7
) -> str:
    """The prompt and up to `num_bytes` sampled bytes after it; stops at an end mark.

    Args:
        flat_N: (N,) float32, the decoder's parameters in schema order.
        temperature: divides the logits; lower is safer and duller.
    """
    model = Decoder(config)
    load_flat(model, decoder_schema(config), flat_N)
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt.encode()) or [END]
    with torch.no_grad():
        for _ in range(num_bytes):
            window_BT = torch.tensor([tokens[-config.context_tokens :]])
            logits_V = model(window_BT)[0, -1] / temperature
            token = int(torch.multinomial(torch.softmax(logits_V, dim=-1), 1, generator=generator))
            if token == END:
                break
            tokens.append(token)
    return decode_tokens(np.array(tokens, dtype=np.uint16))
