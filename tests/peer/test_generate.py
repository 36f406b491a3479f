from __future__ import annotations

import numpy as np
import torch

from averaging.data.tokenizer import END
from averaging.genesis import genesis_anchor
from peer.generate import sample_text
from protocol.decoder_schema import DecoderConfig, decoder_schema

CONFIG = DecoderConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=8, is_tied=False)
SCHEMA = decoder_schema(CONFIG)


def _always(token: int) -> torch.Tensor:
    """Parameters that say `token` whatever stands before it: the same final vector everywhere, and a head that knows it."""
    flat_N = torch.zeros(SCHEMA.num_elements)
    dim = CONFIG.dim
    flat_N[: CONFIG.vocab_size * dim] = 1.0
    flat_N[SCHEMA.offset("norm.weight") :][:dim] = 1.0
    flat_N[SCHEMA.offset("head.weight") + token * dim :][:dim] = 10.0
    return flat_N


def test_the_text_goes_on_from_the_prompt_beyond_the_context() -> None:
    assert sample_text(CONFIG, _always(ord("x")), prompt="import ", num_tokens=20, seed=1) == "import " + "x" * 20


def test_an_end_mark_ends_the_text() -> None:
    assert sample_text(CONFIG, _always(END), prompt="import", num_tokens=20, seed=1) == "import"


def test_the_same_seed_gives_the_same_text_and_no_prompt_is_needed() -> None:
    flat_N = genesis_anchor(SCHEMA, 1)

    def sample(seed: int) -> str:
        return sample_text(CONFIG, flat_N, prompt="", num_tokens=40, seed=seed)

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


class Words:
    """A tokenizer of two words."""

    end = 2

    def encode(self, text: bytes) -> np.ndarray:
        return np.array([b"pot luck".split().index(word) for word in text.split()], dtype=np.uint32)

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(["pot", "luck"][token] for token in tokens)


def test_another_tokenizer_reads_the_prompt_and_writes_the_text() -> None:
    for token, text in ((1, "pot luck luck luck"), (2, "pot")):
        assert sample_text(CONFIG, _always(token), prompt="pot", num_tokens=3, seed=1, tokenizer=Words()) == text
