"""A frozen base with an adapter computes what the base with merged matrices does, and trains the adapter alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.adapted_decoder import adapted_decoder, base_of
from peer.models.cached_decoder import GrowingText
from peer.models.decoder import Decoder, load_flat
from protocol.errors import LocalProtocolError
from protocol.tensors.adapter_schema import adapter_schema, base_bytes
from protocol.tensors.model_config import model_schema
from tests.peer.adapter_world import ADAPTER, CPU, adapted, base_decoder, base_shards
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


def test_an_adapter_of_first_values_changes_nothing(tmp_path: Path) -> None:
    model = adapted_decoder(MODEL, ADAPTER, base_of(base_shards(tmp_path), MODEL), CPU)
    schema = adapter_schema(MODEL, ADAPTER)
    load_flat(model, schema, genesis_anchor(schema, 1))
    assert torch.equal(model(TOKENS_BT), base_decoder()(TOKENS_BT))


def test_only_the_adapter_is_trained_and_the_base_stays_in_bfloat16(tmp_path: Path) -> None:
    model = adapted(tmp_path)
    assert {name for name, _ in model.named_parameters()} == {
        spec.name for spec in adapter_schema(MODEL, ADAPTER).tensors
    }
    values = {name: buffer for name, buffer in model.named_buffers() if name != "table"}
    assert sum(buffer.numel() for buffer in values.values()) == model_schema(MODEL).num_elements
    assert {buffer.dtype for buffer in values.values()} == {torch.bfloat16}


def test_text_that_grows_has_the_logits_of_the_whole_text(tmp_path: Path) -> None:
    model, tokens = adapted(tmp_path), [5, 6, 7, 8]
    text = GrowingText(model)
    with torch.inference_mode():
        text.next_logits(tokens[:-1])
        grown_V = text.next_logits(tokens)
        whole_V = model(torch.tensor([tokens]))[0, -1]
    torch.testing.assert_close(grown_V, whole_V, rtol=1e-4, atol=1e-5)


def test_under_autocast_the_stream_has_its_type(tmp_path: Path) -> None:
    model = adapted(tmp_path)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.hidden(TOKENS_BT).dtype == torch.bfloat16
        loss = model.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:])
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        expected = merged(model).loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:])
    torch.testing.assert_close(loss.detach(), expected, rtol=2e-2, atol=0)


def test_a_base_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match=r"a base of \d+ values; expected \d+, as the model has"):
        base_of(base_shards(tmp_path), UNTIED)


def test_a_base_in_8_bits_has_all_matrices_of_its_layers_so_and_nearly_the_same_loss(tmp_path: Path) -> None:
    exact, narrow = (adapted(tmp_path, adapter=ADAPTER.model_copy(update={"base": base})) for base in ("bf16", "int8"))
    held = {name: buffer for name, buffer in narrow.named_buffers() if buffer.dtype == torch.int8}
    assert set(held) == {spec.name for spec in MODEL.tensors() if len(spec.shape) == 2 and "layers" in spec.name}
    loaded = [buffer for name, buffer in narrow.named_buffers() if name != "table"]
    num_bytes = sum(buffer.numel() * buffer.element_size() for buffer in loaded)
    assert num_bytes == base_bytes(MODEL, ADAPTER.model_copy(update={"base": "int8"}))
    with torch.no_grad():
        losses = [model.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:]) for model in (exact, narrow)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=0)
