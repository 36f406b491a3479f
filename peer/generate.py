"""What the model writes: sampling from a parameter vector."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from averaging.data.tokenizer import ByteTokenizer, Tokens
from peer.model import Decoder, load_flat
from protocol.decoder_schema import DecoderConfig, decoder_schema


class TextTokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def end(self) -> int:
        """The token that ends a document."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """The tokens of a text in UTF-8."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of tokens."""
        ...


_BYTES = ByteTokenizer()


def sample_text(
    config: DecoderConfig,
    flat_N: torch.Tensor,
    *,
    prompt: str,
    num_tokens: int,
    seed: int,
    temperature: float = 0.7,
    tokenizer: TextTokenizer = _BYTES,
) -> str:
    """The prompt and up to `num_tokens` sampled tokens after it; stops at an end mark.

    Args:
        flat_N: (N,) float32, the decoder's parameters in schema order.
        temperature: divides the logits; lower is safer and duller.
        tokenizer: of the run.
    """
    model = Decoder(config)
    load_flat(model, decoder_schema(config), flat_N)
    generator = torch.Generator().manual_seed(seed)
    tokens = [int(token) for token in tokenizer.encode(prompt.encode())] or [tokenizer.end]
    with torch.no_grad():
        for _ in range(num_tokens):
            window_BT = torch.tensor([tokens[-config.context_tokens :]])
            logits_V = model(window_BT)[0, -1] / temperature
            token = int(torch.multinomial(torch.softmax(logits_V, dim=-1), 1, generator=generator))
            if token == tokenizer.end:
                break
            tokens.append(token)
    return tokenizer.decode(np.array(tokens, dtype=np.uint32))
