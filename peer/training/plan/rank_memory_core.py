"""Bytes that a rank of several takes on its card. Pure.

Ranks hold equal parts of parameters, gradients and moments, or have them in the machine's memory. A layer's parameters come together
for its passes, and those before and after the layers for the whole step.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

from peer.training.plan.card_memory_core import (
    CARD_LOGITS,
    PRECISION_BYTES,
    VALUE_BYTES,
    CardLoad,
    memory_need,
)
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.layout import Mesh
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import layer_of

ALONE: Final = Mesh()
"""The mesh of one card."""

_LAYERS_AT_ONCE: Final = 2
"""Layers whose parameters are on a card together: one computes while the next one's come."""

_EXCHANGED: Final = 3
"""Gradients of all tokens' keys and values that are there at once: of one chunk of queries, of the other, and as they are sent."""


def rank_bytes(
    load: CardLoad,
    inner: InnerSection,
    micro_batch: int,
    plan: CardPlan,
    mesh: Mesh,
    *,
    has_fused_norms: bool = True,
    chunk_logits: int = CARD_LOGITS,
) -> int:
    """The most bytes at any moment of a step with so many sequences at a time, on each card of the mesh. One rank alone takes what
    `memory_need` says.
    """
    if mesh.num_ranks == 1:
        found = memory_need(load, inner, micro_batch, plan, has_fused_norms=has_fused_norms, chunk_logits=chunk_logits)
        return found.total
    part = _part_of(load, mesh)
    need = memory_need(part, inner, micro_batch, plan, has_fused_norms=has_fused_norms, chunk_logits=chunk_logits)
    inside, outside = _values(load)
    own = Fraction(inside, mesh.num_ranks * load.num_values) + Fraction(outside, mesh.shard * load.num_values)
    gathered, tables = _gathered_bytes(load, plan, mesh), VALUE_BYTES * outside
    tokens, num_bytes = micro_batch * load.model.context_tokens, PRECISION_BYTES[plan.precision]
    exchanged = _EXCHANGED * tokens * part.layer.keys * num_bytes if mesh.context > 1 else 0
    # ranks with memory for whole layers add up whole gradients too, until the step's last pass
    summed = VALUE_BYTES * inside // mesh.tensor if mesh.keeps_parameters else 0
    return replace(
        need,
        parameters=0 if plan.offload == "all" else ceil(need.parameters * own),
        gradients=ceil(need.gradients * own) + summed,
        moments=ceil(need.moments * own),
        casts=gathered + tables,
        layer=need.layer + gathered + tables + _layer_gradient_bytes(load, plan, mesh) + exchanged,
        tables=need.tables + tables,
    ).total


def _part_of(load: CardLoad, mesh: Mesh) -> CardLoad:
    """The load of a rank that has a part of each sequence and of the products of each layer. Its parameters are whole."""
    layer, ranks = load.layer, mesh.tensor
    tokens = -(-load.model.context_tokens // mesh.context)
    elsewhere, elsewhere_products = (each - each // ranks for each in (layer.split, layer.split_products))
    keys = layer.keys // ranks
    others = keys * (mesh.context - 1)  # it keeps all tokens' keys and values
    split = replace(
        layer,
        kept=layer.kept - elsewhere + others,
        products=layer.products - elsewhere_products,
        compiled=layer.compiled - elsewhere_products + others,
        sums=-(-layer.sums // ranks),
        widest=layer.widest // ranks,
        keys=keys,
    )
    return replace(load, model=load.model.model_copy(update={"context_tokens": tokens}), layer=split)


def _values(load: CardLoad) -> tuple[int, int]:
    """Of all layers, and of what is before and after them."""
    inside = sum(spec.num_elements for spec in load.specs if layer_of(spec.name) is not None)
    return inside, load.num_values - inside


def _gathered_bytes(load: CardLoad, plan: CardPlan, mesh: Mesh) -> int:
    """Parameters of layers in the compute type that are together on a card in a pass."""
    at_once = load.num_layers if mesh.keeps_parameters else min(_LAYERS_AT_ONCE, load.num_layers)
    return PRECISION_BYTES[plan.precision] * _values(load)[0] * at_once // max(1, load.num_layers) // mesh.tensor


def _layer_gradient_bytes(load: CardLoad, plan: CardPlan, mesh: Mesh) -> int:
    """One layer's gradients before the ranks have added and shared them out, beside those of the layer before."""
    each = _values(load)[0] // max(1, load.num_layers)
    return (PRECISION_BYTES[plan.precision] + VALUE_BYTES) * each // mesh.tensor
