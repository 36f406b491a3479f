"""One mixture of a trunk and experts: what it computes, how its routers begin and learn, and what is left without an expert."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from averaging.models.llama.config import LlamaConfig
from peer.models.merging import merge, tune_routers, without_expert
from peer.models.mixture import MixtureDecoder
from protocol.errors import LocalProtocolError
from protocol.tensors.expert_schema import MixtureConfig, expert_schema, trunk_schema
from tests.peer.models.whole_models import holder_model

DECODER = LlamaConfig(dim=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=16)
MIXTURE = MixtureConfig(num_experts=3, ffn_dim=12)
GENERATOR = torch.Generator().manual_seed(4)


def _values(count: int) -> torch.Tensor:
    return 0.2 * torch.randn(count, generator=GENERATOR)


TRUNK_N = _values(trunk_schema(DECODER).num_elements)
EXPERTS = {number: _values(expert_schema(DECODER, MIXTURE, number).num_elements) for number in range(3)}
LETTERS = {number: range(80 * number, 80 * number + 2) for number in range(3)}
"""Each expert's documents are of letters of their own."""


def _documents(number: int, count: int = 8) -> torch.Tensor:
    letters = LETTERS[number]
    return torch.randint(letters.start, letters.stop, (count, 16), generator=GENERATOR)


SAMPLES = {number: _documents(number) for number in range(3)}


def _merged(top_k: int = 1) -> MixtureDecoder:
    mixture = MIXTURE.model_copy(update={"top_k": top_k})
    return merge(DECODER, mixture, TRUNK_N, EXPERTS, SAMPLES)


def _shares(model: MixtureDecoder, number: int) -> torch.Tensor:
    """Of an expert's new documents, how much each layer's router sends to which, (layers, X)."""
    with torch.no_grad():
        _, chosen = model.routed(_documents(number))
    return torch.stack([routed.sent_X / routed.sent_X.sum() for routed in chosen])


def test_forced_to_an_expert_the_merged_model_is_that_of_its_holder() -> None:
    merged = _merged()
    for number, expert_M in EXPERTS.items():
        alone = holder_model(DECODER, MIXTURE, [number], torch.cat([TRUNK_N, expert_M]))
        assert torch.equal(merged(SAMPLES[number], number), alone(SAMPLES[number], number))


def test_routers_begin_by_sending_most_of_a_document_to_its_own_expert() -> None:
    merged = _merged()
    for number in range(3):
        first_layer = _shares(merged, number)[0]
        assert int(first_layer.argmax()) == number
        assert float(first_layer[number]) > 0.8


def test_tuning_lowers_the_loss_and_moves_routers_alone() -> None:
    merged = _merged(top_k=2)
    before = {name: value.clone() for name, value in merged.state_dict().items()}
    batches = [torch.cat(list(SAMPLES.values()))] * 20
    first_nats = tune_routers(merged, batches[:1], rate=0.0)
    assert tune_routers(merged, batches) < first_nats
    moved = {name for name, value in merged.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {f"layers.{layer}.router.weight" for layer in range(2)}


@torch.no_grad()
def _continued(model: MixtureDecoder, number: int) -> torch.Tensor:
    """Documents of an expert's letters that go on as it says itself, (24, 16)."""
    tokens_BT = _documents(number, 24)[:, :4]
    while tokens_BT.shape[1] < 16:
        tokens_BT = torch.cat([tokens_BT, model(tokens_BT, number)[:, -1:].argmax(-1)], dim=1)
    return tokens_BT


def test_routers_learn_also_where_a_token_passes_one_expert_alone() -> None:
    """One gate is always 1 and tells its router nothing: with the loss of one expert these routers would stay the wrong way round."""
    sure = {number: 8.0 * expert_M for number, expert_M in EXPERTS.items()}
    merged = merge(DECODER, MIXTURE, 4.0 * TRUNK_N, sure, SAMPLES)
    for name, value in merged.state_dict().items():
        if name.endswith("router.weight"):
            value.neg_()
    documents_BT = torch.cat([_continued(merged, number) for number in range(3)])

    @torch.no_grad()
    def loss_nats() -> float:
        return float(
            functional.cross_entropy(merged(documents_BT[:, :-1]).flatten(0, 1), documents_BT[:, 1:].flatten())
        )

    before_nats = loss_nats()
    tune_routers(merged, [documents_BT] * 60)
    assert loss_nats() < 0.8 * before_nats


def test_what_was_never_sent_to_an_expert_stays_bit_equal_without_it() -> None:
    merged = _merged()
    documents_BT = torch.cat([_documents(0, 20), _documents(1, 20), _documents(2, 20)])
    with torch.no_grad():
        whole_BTV = merged(documents_BT)
        untouched = [
            document
            for document in range(len(documents_BT))
            if all(int(routed.sent_X[2]) == 0 for routed in merged.routed(documents_BT[document : document + 1])[1])
        ]
        smaller_BTV = without_expert(merged, 2)(documents_BT)
    assert 10 < len(untouched) <= 40
    assert torch.equal(smaller_BTV[untouched], whole_BTV[untouched])
    touched = [document for document in range(len(documents_BT)) if document not in untouched]
    assert not torch.equal(smaller_BTV[touched], whole_BTV[touched])


def test_an_expert_in_the_middle_can_be_taken_out() -> None:
    smaller = without_expert(_merged(), 1)
    assert torch.equal(smaller(SAMPLES[2], 2), _merged()(SAMPLES[2], 2))
    with pytest.raises(LocalProtocolError, match=r"expert 1 of a merged model of 2; expected one of \[0, 2\]"):
        without_expert(smaller, 1)


def test_no_more_experts_are_taken_out_than_a_token_needs() -> None:
    with pytest.raises(LocalProtocolError, match="3 others that stay"):
        without_expert(_merged(top_k=3), 0)


def test_parts_of_another_run_are_not_merged() -> None:
    with pytest.raises(LocalProtocolError, match="expert-1 of 3 values"):
        merge(DECODER, MIXTURE, TRUNK_N, {**EXPERTS, 1: torch.zeros(3)}, SAMPLES)
    with pytest.raises(LocalProtocolError, match=r"samples of experts \[0\]"):
        merge(DECODER, MIXTURE, TRUNK_N, EXPERTS, {0: SAMPLES[0]})
