"""Cached keys and values give the logits and the tokens of the whole text computed anew, also beyond the context."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
import torch

from averaging.models.family import LayerCache
from averaging.models.llama.config import LlamaConfig
from peer.models import decode_text
from peer.models.cached_decoder import GrowingText
from peer.models.decode_text import sample_tokens
from peer.models.decoder import Decoder, load_flat
from peer.models.sampling import Sampling
from protocol.errors import LocalProtocolError
from protocol.tensors.model_config import model_schema

GROUPED = LlamaConfig(
    is_tied=False, dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=64, vocab_size=257, context_tokens=24
)
TIED = GROUPED.model_copy(update={"is_tied": True, "num_kv_heads": 4})
ONE_FOR_ALL = GROUPED.model_copy(update={"num_kv_heads": 1})
CONFIGS = pytest.mark.parametrize("config", [GROUPED, TIED, ONE_FOR_ALL], ids=["grouped", "tied", "one for all"])


def flat(config: LlamaConfig) -> torch.Tensor:
    """Values large enough that the next token is no coin toss."""
    size = sum(prod(spec.shape) for spec in model_schema(config).tensors)
    return torch.randn(size, generator=torch.Generator().manual_seed(7)) * 0.2


def loaded(config: LlamaConfig) -> Decoder:
    model = Decoder(config)
    load_flat(model, model_schema(config), flat(config))
    return model


class Anew(GrowingText):
    """Computes the whole text for each token."""

    def next_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        logits_V: torch.Tensor = self._model(torch.tensor([list(tokens)]))[0, -1]
        return logits_V


@CONFIGS
def test_the_logits_are_those_of_the_whole_text(config: LlamaConfig) -> None:
    model = loaded(config)
    text, tokens = GrowingText(model), [5, 200, 31]
    with torch.inference_mode():
        for token in range(20):
            torch.testing.assert_close(text.next_logits(tokens), model(torch.tensor([tokens]))[0, -1])
            tokens.append(17 * token % 256)
        other = [9, 9]  # another text
        torch.testing.assert_close(text.next_logits(other), model(torch.tensor([other]))[0, -1])


@CONFIGS
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_greedy_and_seeded_sampling_draw_the_same_tokens_beyond_the_context_too(
    config: LlamaConfig, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(60, seed=5, temperature=temperature, top_k=40)
    cached = list(sample_tokens(config, flat(config), prompt=[1, 2, 3], sampling=sampling))
    monkeypatch.setattr(decode_text, "GrowingText", Anew)
    assert cached == list(sample_tokens(config, flat(config), prompt=[1, 2, 3], sampling=sampling))
    assert len(cached) > config.context_tokens


def test_within_the_context_each_token_passes_the_layers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = loaded(GROUPED), list[int]()
    model.layers[0].wq.register_forward_hook(lambda _m, given, _out: lengths.append(given[0].shape[1]))
    text = GrowingText(model)
    with torch.inference_mode():
        for end in range(3, 8):
            text.next_logits(list(range(end)))
    assert lengths == [3, 1, 1, 1, 1]


def test_several_tokens_after_cached_ones_are_refused() -> None:
    cache = LayerCache()
    part = torch.zeros(1, 2, 3, 4)
    cache.extended(part, part)
    with pytest.raises(LocalProtocolError, match="3 tokens after cached ones"):
        cache.extended(part, part)
