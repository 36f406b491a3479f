from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat, parameters_in_order, parts_of
from protocol.errors import LocalProtocolError
from protocol.tensors.model_config import model_schema


def _config(**changes: object) -> LlamaConfig:
    values = {"dim": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 24, "context_tokens": 12}
    return LlamaConfig.model_validate({**values, **changes})


@pytest.mark.parametrize("changes", [{}, {"is_tied": False}, {"num_kv_heads": 1}, {"num_kv_heads": 4}])
def test_the_model_has_exactly_the_tensors_of_its_schema(changes: dict[str, object]) -> None:
    config = _config(**changes)
    schema = model_schema(config)
    assert [tuple(p.shape) for p in parameters_in_order(Decoder(config), schema)] == [s.shape for s in schema.tensors]


def test_parameters_survive_the_flat_vector_and_a_wrong_length_is_refused() -> None:
    config = _config()
    schema, model = model_schema(config), Decoder(config)
    anchor_N = genesis_anchor(schema, 5)
    load_flat(model, schema, anchor_N)
    for parameter, part in zip(parameters_in_order(model, schema), parts_of(anchor_N, schema), strict=True):
        assert torch.equal(parameter, part)
    with pytest.raises(LocalProtocolError):
        load_flat(model, schema, anchor_N[:-1])


def test_a_later_token_never_changes_an_earlier_prediction() -> None:
    config = _config()
    model = Decoder(config)
    load_flat(model, model_schema(config), genesis_anchor(model_schema(config), 5) * 10)
    tokens_BT = torch.arange(12)[None]
    changed_BT = tokens_BT.clone()
    changed_BT[0, 7] = 200
    with torch.no_grad():
        first, second = model(tokens_BT), model(changed_BT)
    torch.testing.assert_close(first[:, :7], second[:, :7])
    assert not torch.allclose(first[:, 7:], second[:, 7:])


def test_a_model_and_a_schema_that_disagree_are_told_apart() -> None:
    with pytest.raises(LocalProtocolError):
        parameters_in_order(Decoder(_config()), model_schema(_config(num_layers=1)))
