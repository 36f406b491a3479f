"""What the model writes: sampling from a parameter vector."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import torch

from averaging.data.tokenizer import END, VOCAB_SIZE
from peer.model import Decoder, load_flat
from peer.sampling import Sampling
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import ConfigError


def sample_text(config: DecoderConfig, flat_N: torch.Tensor, *, prompt: str, sampling: Sampling) -> str:
    """The prompt and what is sampled after it; broken UTF-8 becomes the replacement sign. Raises as `sample_bytes`."""
    data = prompt_bytes(prompt)
    return "".join(decoded(iter([data, *sample_bytes(config, flat_N, prompt=data, sampling=sampling)])))


def prompt_bytes(prompt: str) -> bytes:
    """The prompt as the shell gave it, whether or not it was UTF-8."""
    return prompt.encode("utf8", "surrogateescape")


def sample_bytes(config: DecoderConfig, flat_N: torch.Tensor, *, prompt: bytes, sampling: Sampling) -> Iterator[bytes]:
    """One sampled byte after the other, after the prompt, which may be empty; stops at an end mark.

    Args:
        config: the model's numbers.
        flat_N: (N,) float32, the decoder's parameters in schema order.
        prompt: what the text begins with; the model sees as much of its end as the context holds.
        sampling: how many bytes, and how they are drawn.

    Raises:
        ConfigError: the model's vocabulary holds no bytes, or its output is no number.
    """
    if config.vocab_size < VOCAB_SIZE:
        raise ConfigError(f"a model with a vocabulary of {config.vocab_size}", f"bytes and an end mark ({VOCAB_SIZE})")
    model = Decoder(config)
    load_flat(model, decoder_schema(config), flat_N)
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens = list(prompt[-config.context_tokens :]) or [END]
    for _ in range(sampling.num_tokens):
        with torch.inference_mode():
            logits_V = model(torch.tensor([tokens]))[0, -1, :VOCAB_SIZE].double()
            token = _draw(logits_V, sampling, generator)
        if token == END:
            return
        yield bytes([token])
        tokens = [*tokens, token][-config.context_tokens :]


def decoded(pieces: Iterator[bytes]) -> Iterator[str]:
    """The text in pieces, each as soon as its characters are whole; what is no UTF-8 becomes the replacement sign."""
    decoder = codecs.getincrementaldecoder("utf8")("replace")
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _draw(logits_V: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    if not bool(torch.isfinite(logits_V).all()):
        raise ConfigError(
            "the model's output is no number", "a model whose training went well", "use another checkpoint"
        )
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    if 0 < sampling.top_k < len(logits_V):
        least = logits_V.topk(sampling.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < least, -torch.inf)
    # The greatest is taken off first: a tiny temperature would make infinities of all.
    scaled_V = (logits_V - logits_V.max()) / sampling.temperature
    return int(torch.multinomial(torch.softmax(scaled_V, dim=-1), 1, generator=generator))
