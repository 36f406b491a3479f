"""Memory and data of an adapter over a frozen base, for dry runs. Pure.

Formulas of the card are those of peer/training/plan/card_memory_core.py for the smallest exact plan: products in bfloat16, one
sequence at a time, and each layer's activations computed again in its backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.estimates.dry_run import Estimate
from protocol.tables import in_bytes, whole
from protocol.tensors.adapter_schema import BFLOAT16_BYTES, AdapterConfig, adapter_schema, base_bytes
from protocol.tensors.model_config import ModelConfig

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

_TRAINED_BYTES: Final = 16
"""A value of the adapter: parameter, gradient, and two moments of AdamW."""

_PRODUCT_BYTES: Final = 2
_CHUNK_LOGITS: Final = 1 << 25
_LEAST_CHUNK_TOKENS: Final = 64
_LOGIT_BYTES: Final = 12
"""Of the loss: logits of a chunk of tokens in float32, those of the chunk before, and both in the type of products."""

_TOKEN_BYTES: Final = 16

SHOWN_CARD_BYTES: Final = 24 * 10**9
"""The card that a dry run compares with."""


def adapter_card_bytes(model: ModelConfig, adapter: AdapterConfig) -> int:
    """Bytes of a card that trains an adapter with one sequence at a time."""
    layer, tokens, num_values = (
        model.layer_activations,
        model.context_tokens,
        adapter_schema(model, adapter).num_elements,
    )
    lasting = base_bytes(model, adapter) + _TRAINED_BYTES * num_values
    kept = model.num_layers * tokens * _PRODUCT_BYTES * model.dim
    rank_values = adapter.rank * len(adapter.parts(model))
    whole_layer = _PRODUCT_BYTES * (layer.kept + rank_values + 2 * layer.widest) + 4 * layer.sums
    loss = _LOGIT_BYTES * model.vocab_size * min(max(_LEAST_CHUNK_TOKENS, _CHUNK_LOGITS // model.vocab_size), tokens)
    loss += tokens * model.dim * 3 * _PRODUCT_BYTES
    return lasting + kept + max(tokens * whole_layer, loss) + tokens * _TOKEN_BYTES


def adapter_estimates(run: RunConfig) -> tuple[Estimate, ...]:
    """Lines about the base and the card; none in a run without an adapter."""
    if run.adapter is None:
        return ()
    packed, needed = BFLOAT16_BYTES * run.base_elements, adapter_card_bytes(run.model, run.adapter.config)
    fits = "fits" if needed < SHOWN_CARD_BYTES else "does not fit"
    context = f"one sequence of {whole(run.model.context_tokens)} tokens at a time"
    return (
        Estimate("base", f"{whole(run.base_elements)} parameters, frozen: {in_bytes(packed)} of data, in bfloat16"),
        Estimate("a card", f"about {in_bytes(needed)} with {context}, which {fits} {in_bytes(SHOWN_CARD_BYTES)}"),
    )
