from __future__ import annotations

import numpy as np
import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import END, ByteTokenizer
from averaging.data.vocabulary import train_bpe
from averaging.models.llama.config import LlamaConfig
from peer.models.decode_text import decoded, sample_tokens
from peer.models.sampling import Sampling
from protocol.errors import ConfigError
from protocol.tensors.model_config import model_schema
from tests.peer.models.whole_models import sample_text

CONFIG = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=8, is_tied=False)
SCHEMA = model_schema(CONFIG)


def _always(token: int) -> torch.Tensor:
    """Parameters that say `token` whatever stands before it: the same final vector everywhere, and a head that knows it."""
    flat_N = torch.zeros(SCHEMA.num_elements)
    dim = CONFIG.dim
    flat_N[: CONFIG.vocab_size * dim] = 1.0
    flat_N[SCHEMA.offset("norm.weight") :][:dim] = 1.0
    flat_N[SCHEMA.offset("head.weight") + token * dim :][:dim] = 10.0
    return flat_N


def sample(flat_N: torch.Tensor, num_tokens: int, prompt: str = "import ", **numbers: float) -> str:
    return sample_text(CONFIG, flat_N, prompt=prompt, sampling=Sampling(num_tokens, **numbers))  # type: ignore[arg-type]


def test_the_text_goes_on_from_the_prompt_beyond_the_context() -> None:
    assert sample(_always(ord("x")), 20) == "import " + "x" * 20


def test_an_end_mark_ends_the_text() -> None:
    assert sample(_always(END), 20) == "import "


def test_the_same_seed_gives_the_same_text_and_no_prompt_is_needed() -> None:
    flat_N = genesis_anchor(SCHEMA, 1)
    assert sample(flat_N, 12, "", seed=1) == sample(flat_N, 12, "", seed=1)
    assert sample(flat_N, 12, "", seed=1) != sample(flat_N, 12, "", seed=2)


class Words:
    """A tokenizer of two words."""

    vocab_size = 3
    end = 2

    def encode(self, text: bytes) -> np.ndarray:
        return np.array([b"pot luck".split().index(word) for word in text.split()], dtype=np.uint32)

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(["pot", "luck"][token] for token in tokens)


def test_another_tokenizer_reads_the_prompt_and_writes_the_text() -> None:
    for token, text in ((1, "pot luck luck luck"), (2, "pot")):
        flat_N = _always(token)
        assert sample_text(CONFIG, flat_N, prompt="pot", sampling=Sampling(3), tokenizer=Words()) == text
    assert list(decoded([1, 1, 0], [0], Words())) == [" luck", " luck", " pot"]


def test_pieces_of_a_trained_tokenizer_are_whole_characters_and_together_the_text() -> None:
    trained = train_bpe([Text("你好世界 größer ".encode() * 30, "train")], 280)
    text = "你好 🐈 größer 世界é"
    tokens = [int(token) for token in trained.encode(text.encode())]
    pieces = list(decoded(iter(tokens), trained.encode(b"ab"), trained))
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert not any("\ufffd" in piece for piece in pieces)


def test_temperature_zero_one_token_of_choice_and_next_to_no_temperature_take_the_likeliest() -> None:
    flat_N = genesis_anchor(SCHEMA, 1) * 20
    likeliest = sample(flat_N, 12, temperature=0.0)
    assert likeliest == sample(flat_N, 12, top_k=1, seed=5) == sample(flat_N, 12, temperature=1e-300, seed=6)
    assert likeliest != sample(flat_N, 12, temperature=50.0)


def test_top_k_draws_from_the_likeliest_alone() -> None:
    flat_N = _always(ord("x"))
    flat_N[SCHEMA.offset("head.weight") + ord("y") * CONFIG.dim :][: CONFIG.dim] = 9.99
    assert set(sample(flat_N, 30, "", temperature=100.0, top_k=2)) == {"x", "y"}


def test_prompt_that_is_no_utf8_and_bytes_that_are_none_are_shown_replaced() -> None:
    assert sample(_always(0xFF), 2, "caf\udce9 ") == "caf\ufffd \ufffd\ufffd"


def test_a_character_of_several_bytes_is_given_out_whole() -> None:
    tokens = [*"a🐈é".encode(), 0xF0]
    assert list(decoded(tokens, [], ByteTokenizer())) == ["a", "🐈", "é", "\ufffd"]


def test_bytes_that_are_no_text_do_not_hold_up_the_rest_for_ever() -> None:
    pieces = list(decoded([0xFF] * 200, [], ByteTokenizer()))
    assert "".join(pieces) == "\ufffd" * 200
    assert len(pieces[0]) == 64


def test_numbers_beyond_the_bytes_and_the_end_mark_are_never_drawn() -> None:
    config = CONFIG.model_copy(update={"vocab_size": 300})
    flat_N = torch.zeros(model_schema(config).num_elements)
    sampling = Sampling(30, temperature=100.0)
    assert all(token < 256 for token in sample_tokens(config, flat_N, prompt=b"x", sampling=sampling))


def test_model_without_bytes_or_with_output_that_is_no_number_is_refused() -> None:
    few = CONFIG.model_copy(update={"vocab_size": 256})
    with pytest.raises(ConfigError, match="a vocabulary of 256"):
        next(sample_tokens(few, torch.zeros(1), prompt=b"", sampling=Sampling(1)))
    with pytest.raises(ConfigError, match="no number"):
        sample(torch.full((SCHEMA.num_elements,), torch.nan), 1)
