"""Generates text by sampling from a parameter vector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import torch

from averaging.data.tokenizer import Bits, ByteTokenizer, Tokens
from peer.models.cached_decoder import GrowingText
from peer.models.decoder import Decoder, load_flat
from peer.models.sampling import Sampling
from protocol.errors import ConfigError
from protocol.tensors.model_config import ModelConfig, model_schema

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
"""The text of a tokenizer for bytes that are not a character, or not yet a whole one."""

_CONTEXT_TOKENS: Final = 8
"""Number of previous tokens decoded together with new ones. Some tokenizers write a word's space only after another word."""

_LONGEST_PIECE_TOKENS: Final = 64
"""After this many tokens without a complete character at the end, they are shown as they are."""


class TextTokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token."""
        ...

    @property
    def end(self) -> int:
        """The token that ends a document."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """The tokens of a text, which should be UTF-8."""
        ...

    def encode_marked(self, text: bytes, counted: Sequence[tuple[int, int]]) -> tuple[Tokens, Bits]:
        """The tokens of a text with special tokens in it."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """Decode tokens. Invalid UTF-8 becomes the replacement character."""
        ...


_BYTES: Final = ByteTokenizer()


def prompt_tokens(prompt: str, tokenizer: TextTokenizer) -> Sequence[int]:
    """The tokens of a prompt from the command line, which may not be UTF-8."""
    return [int(token) for token in tokenizer.encode(_prompt_bytes(prompt))]


def prompt_text(prompt: str) -> str:
    """The prompt for display. Invalid UTF-8 becomes the replacement character."""
    return _prompt_bytes(prompt).decode("utf8", "replace")


def _prompt_bytes(prompt: str) -> bytes:
    return prompt.encode("utf8", "surrogateescape")


def sample_tokens(
    config: ModelConfig,
    flat_N: torch.Tensor,
    *,
    prompt: Sequence[int],
    sampling: Sampling,
    tokenizer: TextTokenizer = _BYTES,
) -> Iterator[int]:
    """Sample one token after another after the prompt, which may be empty. Stops before an end mark.

    Args:
        config: the model's config.
        flat_N: (N,) float32, the model's parameters in schema order.
        prompt: the beginning of the text; the model sees as much of its end as fits in the context.
        sampling: the number of tokens, and how they are drawn.
        tokenizer: of the run. Tokens of the model beyond its vocabulary are never drawn.

    Raises:
        ConfigError: the model has fewer tokens than the tokenizer, or its output is not a number.
    """
    _vocabulary(config, tokenizer)
    model = Decoder(config)
    load_flat(model, model_schema(config), flat_N)
    yield from sample_from(model, prompt=prompt, sampling=sampling, tokenizer=tokenizer)


def sample_from(
    model: Decoder,
    *,
    prompt: Sequence[int],
    sampling: Sampling,
    tokenizer: TextTokenizer = _BYTES,
    stop: int | None = None,
) -> Iterator[int]:
    """As `sample_tokens`, with a model that has its values. They need not be float32. Stops before the token `stop`, too."""
    config, vocab_size = model.config, _vocabulary(model.config, tokenizer)
    text = GrowingText(model)
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens = list(prompt[-config.context_tokens :]) or [tokenizer.end]
    for _ in range(sampling.num_tokens):
        with torch.inference_mode():
            logits_V = text.next_logits(tokens)[:vocab_size].double()
            token = _draw(logits_V, sampling, generator)
        if token in (tokenizer.end, stop):
            return
        yield token
        tokens = [*tokens, token][-config.context_tokens :]


def _vocabulary(config: ModelConfig, tokenizer: TextTokenizer) -> int:
    """The tokens that may be drawn. Raises ConfigError if the model has fewer."""
    vocab_size = max(tokenizer.vocab_size, tokenizer.end + 1)
    if config.vocab_size < vocab_size:
        raise ConfigError(f"a model with a vocabulary of {config.vocab_size}", f"its tokenizer's {vocab_size} tokens")
    return vocab_size


def decoded(sampled: Iterable[int], prompt: Sequence[int], tokenizer: TextTokenizer) -> Iterator[str]:
    """The text of the sampled tokens in pieces, each as soon as its characters are complete. It continues the prompt's tokens."""
    before, num_shown = _context(prompt[-_CONTEXT_TOKENS:], tokenizer)
    piece: list[int] = []
    for token in sampled:
        piece.append(token)
        text = _decode([*before, *piece], tokenizer)
        is_whole = not text.endswith(_REPLACEMENT) or len(piece) >= _LONGEST_PIECE_TOKENS
        new = (text if is_whole else text.rstrip(_REPLACEMENT))[num_shown:]
        if new:
            yield new
            num_shown += len(new)
        if is_whole and (new or len(piece) >= _LONGEST_PIECE_TOKENS):
            before, num_shown = _context(piece, tokenizer)
            piece = []
    if new := _decode([*before, *piece], tokenizer)[num_shown:]:
        yield new


def _context(tokens: Sequence[int], tokenizer: TextTokenizer) -> tuple[Sequence[int], int]:
    """Tokens whose text was already returned, and its length. Empty if the text ends within a character, which later tokens would
    change.
    """
    text = _decode(tokens, tokenizer)
    return ((), 0) if text.endswith(_REPLACEMENT) else (tokens, len(text))


def _decode(tokens: Sequence[int], tokenizer: TextTokenizer) -> str:
    return tokenizer.decode(np.array(tokens, dtype=np.uint32))


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
    # The greatest is subtracted first, since a tiny temperature would give infinities.
    scaled_V = (logits_V - logits_V.max()) / sampling.temperature
    return int(torch.multinomial(torch.softmax(scaled_V, dim=-1), 1, generator=generator))
