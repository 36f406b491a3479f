"""The decoder with experts: alone, merged, and one like the other."""

from __future__ import annotations

import pytest
import torch

from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, parameters_in_order
from peer.models.mixture import MixtureDecoder, Routed, balance_loss, router_z_loss
from protocol.errors import LocalProtocolError
from protocol.tensors.expert_schema import MixtureConfig, held_units

DECODER = LlamaConfig(dim=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=8, is_tied=False)
MIXTURE = MixtureConfig(num_experts=3, ffn_dim=12)
TOKENS_BT = torch.randint(257, (4, 8), generator=torch.Generator().manual_seed(5))


def _merged(top_k: int = 1) -> MixtureDecoder:
    torch.manual_seed(1)
    model = MixtureDecoder(DECODER, MIXTURE.model_copy(update={"top_k": top_k}), range(3), is_merged=True)
    for name, parameter in model.named_parameters():
        if name.endswith("router.weight"):
            torch.nn.init.normal_(parameter)
    return model


def test_a_holder_has_the_tensors_of_its_units_and_no_others() -> None:
    model = MixtureDecoder(DECODER, MIXTURE, [2])
    assert parameters_in_order(model, held_units(DECODER, MIXTURE, [2]).whole)


def test_a_merged_model_that_is_forced_to_an_expert_is_its_holders_model() -> None:
    merged = _merged()
    alone = MixtureDecoder(DECODER, MIXTURE, [1])
    alone.load_state_dict({name: value for name, value in merged.state_dict().items() if name in alone.state_dict()})
    assert torch.equal(merged(TOKENS_BT, 1), alone(TOKENS_BT, 1))
    # with a router that sends every token there, it is the same to the rounding of one product
    for layer in merged.layers:
        layer.router.forward = lambda y_BTD: torch.tensor([-1e4, 1e4, -1e4]).expand(*y_BTD.shape[:2], 3)
    assert torch.allclose(merged(TOKENS_BT), alone(TOKENS_BT, 1), rtol=0.0, atol=1e-5)


def test_a_mixture_of_an_expert_that_adds_nothing_is_the_decoder_itself() -> None:
    torch.manual_seed(2)
    mixture = MixtureDecoder(DECODER, MixtureConfig(num_experts=1, ffn_dim=12), [0], is_merged=True)
    for layer in mixture.layers:
        layer.experts["0"].w_down.weight.data.zero_()
    dense = Decoder(DECODER)
    dense.load_state_dict({name: value for name, value in mixture.state_dict().items() if name in dense.state_dict()})
    assert torch.equal(mixture(TOKENS_BT), dense(TOKENS_BT))


def test_one_expert_that_every_token_passes_is_a_wider_dense_model() -> None:
    torch.manual_seed(3)
    mixture = MixtureDecoder(DECODER, MixtureConfig(num_experts=1, ffn_dim=12), [0], is_merged=True)
    wide = Decoder(DECODER.model_copy(update={"ffn_dim": 36}))
    values = mixture.state_dict()
    for name, parameter in wide.named_parameters():
        part = name.split(".")[-2]
        if part in ("w_gate", "w_up", "w_down"):
            own = f"{name.rsplit('.', 2)[0]}.experts.0.{part}.weight"
            parameter.data = torch.cat([values[name], values[own]], dim=1 if part == "w_down" else 0)
        else:
            parameter.data = values[name]
    assert torch.allclose(mixture(TOKENS_BT), wide(TOKENS_BT), rtol=0.0, atol=1e-5)


def test_a_model_that_is_not_merged_asks_for_the_documents_expert() -> None:
    with pytest.raises(LocalProtocolError, match="the expert of the documents"):
        MixtureDecoder(DECODER, MIXTURE, [0])(TOKENS_BT)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_each_token_is_sent_to_top_k_experts(top_k: int) -> None:
    _, chosen = _merged(top_k).routed(TOKENS_BT)
    assert [int(routed.sent_X.sum()) for routed in chosen] == [top_k * TOKENS_BT.numel()] * DECODER.num_layers


def test_the_balance_loss_is_one_where_experts_have_as_many_and_more_where_one_has_all() -> None:
    even = Routed(torch.zeros(1, 6, 3), torch.tensor([2, 2, 2]))
    assert float(balance_loss([even], 1)) == pytest.approx(1.0)
    skewed = Routed(torch.tensor([9.0, 0.0, 0.0]).expand(1, 6, 3), torch.tensor([6, 0, 0]))
    assert float(balance_loss([skewed], 1)) == pytest.approx(3.0, abs=1e-2)


def test_the_z_loss_is_the_squared_log_sum_exp() -> None:
    logits_BTX = torch.tensor([[[0.0, 0.0], [1.0, 1.0]]])
    expected = (torch.tensor(2.0).log() ** 2 + (1.0 + torch.tensor(2.0).log()) ** 2) / 2
    assert float(router_z_loss([Routed(logits_BTX, torch.tensor([1, 1]))])) == pytest.approx(float(expected))
