"""An expert with its trunk is one ordinary decoder."""

from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.expert_dense import dense_config, dense_tensors
from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder
from protocol.errors import ConfigError
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import model_schema
from tests.peer.models.whole_models import holder_model

DECODER = LlamaConfig(dim=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=8)
MIXTURE = MixtureConfig(num_experts=2, ffn_dim=12)


def test_the_decoder_of_an_expert_has_its_logits() -> None:
    schema = held_units(DECODER, MIXTURE, range(2)).whole
    flat_N = 10 * genesis_anchor(schema, 1)
    tensors = {s.name: flat_N[schema.offset(s.name) :][: s.num_elements].view(s.shape) for s in schema.tensors}
    config = dense_config(DECODER, MIXTURE)
    tokens_BT = torch.arange(16).view(2, 8)
    whole = holder_model(DECODER, MIXTURE, [0, 1], flat_N)
    for expert in range(2):
        dense = dense_tensors(DECODER, MIXTURE, tensors, expert)
        assert [(s.name, s.shape) for s in model_schema(config).tensors] == [
            (s.name, tuple(dense[s.name].shape)) for s in model_schema(config).tensors
        ]
        model = Decoder(config)
        model.load_state_dict(dense)
        assert torch.allclose(model(tokens_BT), whole(tokens_BT, expert), atol=1e-5)
    assert not torch.allclose(whole(tokens_BT, 0), whole(tokens_BT, 1), atol=1e-3)


def test_an_expert_that_the_run_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expert 2 of a run of 2; expected 0 to 1; name one of those with --expert"):
        dense_tensors(DECODER, MIXTURE, {}, 2)
