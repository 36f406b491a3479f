"""Torch's own counting of a step's memory, without computing it: tensors have shapes and no values."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from peer.models.adapted_decoder import adapted_decoder
from peer.models.chunked_loss import CPU_LOGITS
from peer.models.decoder import Decoder
from peer.training.plan.card_memory_core import MemoryNeed, adapter_load, memory_need, whole_load
from peer.training.plan.card_plan import CardPlan
from peer.training.replica.away_replica import AwayReplica
from peer.training.replica.replica import Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.tensor_schema import TensorSchema
from tests.peer.pretended_card import PretendedCard


def expected_of_adapter(
    model: ModelConfig, adapter: AdapterConfig, inner: InnerSection, micro_batch: int, plan: CardPlan
) -> MemoryNeed:
    """The formulas of an adapter for the CPU."""
    load = adapter_load(model, adapter)
    return memory_need(load, inner, micro_batch, plan, has_fused_norms=False, chunk_logits=CPU_LOGITS)


def expected(model: ModelConfig, inner: InnerSection, micro_batch: int, plan: CardPlan) -> MemoryNeed:
    """The formulas for the CPU, where the step below is counted."""
    return memory_need(whole_load(model), inner, micro_batch, plan, has_fused_norms=False, chunk_logits=CPU_LOGITS)


def counted_bytes(
    model: ModelConfig, inner: InnerSection, micro_batch: int, plan: CardPlan, adapter: AdapterConfig | None = None
) -> int:
    """The most bytes at any moment of a later micro-batch of a later step, and of that step."""
    card = PretendedCard()
    with FakeTensorMode(), card:
        made, schema = _made(model, adapter)
        is_away = plan.offload == "all"
        cpu = torch.device("cpu")
        replica = AwayReplica(made, schema, inner, plan, cpu) if is_away else Replica(made, schema, inner, plan)
        _give_gradients(replica)
        replica.step(1e-3)  # makes the moments
        _give_gradients(replica)
        card.forget_peak()
        tokens_BT = torch.zeros((micro_batch, model.context_tokens + 1), dtype=torch.int64)
        with replica.computing():
            loss = made.loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
        replica.backward(loss)
        del loss
        replica.step(1e-3)
    elsewhere = sum(own.nbytes for own in _in_machine(replica))
    return card.peak_bytes - elsewhere


def _made(model: ModelConfig, adapter: AdapterConfig | None) -> tuple[Decoder, TensorSchema]:
    """The model without values, and the schema of what is trained."""
    if adapter is None:
        return Decoder(model), model_schema(model)
    shapes = {spec.name: spec.shape for spec in model.tensors()}
    cpu = torch.device("cpu")
    made = adapted_decoder(model, adapter, lambda name: torch.empty(shapes[name], dtype=torch.bfloat16), cpu)
    return made, adapter_schema(model, adapter)


def _in_machine(replica: Replica) -> list[torch.Tensor]:
    """All values that do not lie on the card: parameters, their gradients and their moments. They last through the step."""
    if not isinstance(replica, AwayReplica):
        return []
    return [*replica.parameters, *map(torch.zeros_like, replica.parameters), *replica.optimizer.moments()]


def _give_gradients(replica: Replica) -> None:
    for parameter in replica.parameters:
        parameter.grad = torch.zeros_like(parameter)
