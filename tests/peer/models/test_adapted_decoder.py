"""A frozen base with an adapter computes what the base with merged matrices does, and trains the adapter alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder
from tests.peer.adapter_world import ADAPTER, adapted, base_decoder
from tests.peer.training_world import MODEL

TIED = MODEL
UNTIED = MODEL.model_copy(update={"is_tied": False, "num_layers": 2})
TOKENS_BT = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(5))


def merged(model: Decoder) -> Decoder:
    """An ordinary decoder whose matrices have the adapter's product added."""
    whole = base_decoder(model.config)
    parts, named = dict(whole.named_parameters()), dict(model.named_parameters())
    with torch.no_grad():
        for name, a_RI in named.items():
            if ".lora_A." in name:
                b_OR = named[name.replace("lora_A", "lora_B")]
                parts[name.replace("lora_A.", "")].add_(b_OR @ a_RI, alpha=ADAPTER.scale)
    return whole


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_outputs_and_gradients_are_those_of_merged_matrices(tmp_path: Path, config: LlamaConfig) -> None:
    model = adapted(tmp_path, config)
    whole = merged(model)
    torch.testing.assert_close(model(TOKENS_BT), whole(TOKENS_BT), rtol=1e-5, atol=1e-5)
    model.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:]).backward()
    whole.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:]).backward()
    of_whole = {name: parameter.grad for name, parameter in whole.named_parameters()}
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        grad_OI = of_whole[name.replace("lora_A.", "").replace("lora_B.", "")]
        assert grad_OI is not None
        assert parameter.grad is not None
        if ".lora_A." in name:
            expected = ADAPTER.scale * named[name.replace("lora_A", "lora_B")].t() @ grad_OI
        else:
            expected = ADAPTER.scale * grad_OI @ named[name.replace("lora_B", "lora_A")].t()
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)
