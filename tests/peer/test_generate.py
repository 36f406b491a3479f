from __future__ import annotations

import pytest
import torch

from averaging.data.tokenizer import END
from averaging.genesis import genesis_anchor
from peer.generate import decoded, sample_bytes, sample_text
from peer.sampling import Sampling
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import ConfigError

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
    pieces = [bytes([byte]) for byte in "a🐈é".encode()]
    assert list(decoded(iter([*pieces, b"\xf0"]))) == ["a", "🐈", "é", "\ufffd"]


def test_numbers_beyond_the_bytes_and_the_end_mark_are_never_drawn() -> None:
    config = CONFIG.model_copy(update={"vocab_size": 300})
    flat_N = torch.zeros(decoder_schema(config).num_elements)
    sampling = Sampling(30, temperature=100.0)
    assert all(len(piece) == 1 for piece in sample_bytes(config, flat_N, prompt=b"x", sampling=sampling))


def test_model_without_bytes_or_with_output_that_is_no_number_is_refused() -> None:
    few = CONFIG.model_copy(update={"vocab_size": 256})
    with pytest.raises(ConfigError, match="a vocabulary of 256"):
        next(sample_bytes(few, torch.zeros(1), prompt=b"", sampling=Sampling(1)))
    with pytest.raises(ConfigError, match="no number"):
        sample(torch.full((SCHEMA.num_elements,), torch.nan), 1)
