"""Bytes that training takes on a card, by the model's numbers. Pure; held against torch's own counting in tests.

A step has three moments that may take most: the end of a forward pass with its loss, a layer's backward pass, and the optimizer's
step. Bytes that all of them share are added to the largest.

Shapes: N values of all parameters, D values of a token between layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from peer.training.plan.card_plan import FLOAT32, CardPlan, Checkpointing, Offload, Precision
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema, base_bytes, target_shapes
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import EMBEDDING, LayerActivations, ModelConfig, layer_of, num_values
from protocol.tensors.stage_schema import StageMap, stage_schema
from protocol.tensors.tensor_schema import TensorSpec

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

VALUE_BYTES: Final = 4
PRECISION_BYTES: Final[dict[Precision, int]] = {"fp32": 4, "bf16": 2, "fp16": 2}
ADAMW_BYTES: Final = 8
MUON_BYTES: Final = 4
INT8_BYTES: Final = 2.03
"""Bytes of the moments a value: two in float32, one in float32, two in 8 bits with the scales of their blocks."""

CAST_VALUES: Final = 1 << 22
"""Values of a frozen weight that are in another type at a time (peer/models/frozen_linear.py)."""

MUON_STEP_BYTES: Final = 24
MUON_TOGETHER: Final = 1 << 20
"""Muon's temporaries a value of the matrices that it processes together, and how many values these are at least."""

LEAVING: Final = 3
"""Gradients that are on their way from the card at a time (peer/training/replica/away_replica.py)."""

CPU_LOGITS: Final = 1 << 22
CARD_LOGITS: Final = 1 << 25
LEAST_CHUNK_TOKENS: Final = 64
"""Logits of the loss that exist at a time, and tokens of which there are some at least (peer/models/chunked_loss.py)."""

TOKEN_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class CardLoad:
    """A model, or the part of it that a card trains.

    Attributes:
        specs: of all tensors there that are trained.
        frozen: of the tensors that are not, in a run with an adapter; `frozen_bytes` of them.
        is_cast: whether the frozen ones are of another type than bfloat16.
        num_layers: layers there.
        layer: activations of each.
        has_embedding, has_head: whether it begins with tokens, whether it ends with the loss.
        num_kept: micro-batches between their passes at once; more than one in a stage.
    """

    model: ModelConfig
    specs: tuple[TensorSpec, ...]
    num_layers: int
    layer: LayerActivations
    has_embedding: bool = True
    has_head: bool = True
    num_kept: int = 1
    frozen: tuple[TensorSpec, ...] = ()
    frozen_bytes: int = 0
    is_cast: bool = False

    @property
    def num_values(self) -> int:
        """N."""
        return num_values(self.specs)


def whole_load(model: ModelConfig) -> CardLoad:
    """A whole model."""
    return CardLoad(model, model.tensors(), model.num_layers, model.layer_activations)


def adapter_load(model: ModelConfig, adapter: AdapterConfig) -> CardLoad:
    """An adapter over a frozen model. Each adapted matrix keeps `rank` more values a token, and the adapter's output too where
    results of products are kept.
    """
    layer, shapes = model.layer_activations, target_shapes(model)
    adapted_rows = [rows for name, (rows, _) in shapes.items() if not adapter.targets or name in adapter.targets]
    more = adapter.rank * len(adapted_rows)
    adapted = replace(
        layer,
        kept=layer.kept + more,
        products=layer.products + more + sum(adapted_rows),
        compiled=layer.compiled + more,
    )
    return CardLoad(
        model,
        adapter_schema(model, adapter).tensors,
        model.num_layers,
        adapted,
        frozen=model.tensors(),
        frozen_bytes=base_bytes(model, adapter),
        is_cast=adapter.base == "int8",
    )


def experts_load(model: ModelConfig, mixture: MixtureConfig, experts: Sequence[int]) -> CardLoad:
    """The trunk of a run of experts and some experts, of which one computes at a time."""
    specs, layer, ffn = (
        held_units(model, mixture, tuple(experts)).whole.tensors,
        model.layer_activations,
        mixture.ffn_dim,
    )
    of_expert = replace(
        layer,
        kept=layer.kept + 4 * ffn,
        products=layer.products + 2 * ffn + model.dim,
        compiled=layer.compiled + 2 * ffn,
        widest=max(layer.widest, ffn),
        split=layer.split + 4 * ffn,
        split_products=layer.split_products + 2 * ffn,
    )
    return CardLoad(model, specs, model.num_layers, of_expert)


def stage_load(stages: StageMap, stage: int, num_kept: int) -> CardLoad:
    """One stage of a pipeline run that keeps so many micro-batches between their passes."""
    model, (begin, stop) = stages.decoder, stages.span(stage)
    return CardLoad(
        model,
        stage_schema(stages, stage).tensors,
        stop - begin,
        model.layer_activations,
        has_embedding=stages.is_first(stage),
        has_head=stages.is_last(stage),
        num_kept=num_kept,
    )


def run_load(run: RunConfig, experts: Sequence[int] = ()) -> CardLoad:
    """The part of a run's model that a card trains, of a run without stages. `experts`: those held there, the first one if none."""
    if run.mixture is not None:
        return experts_load(run.model, run.mixture, tuple(experts) or (0,))
    return adapter_load(run.model, run.adapter.config) if run.adapter is not None else whole_load(run.model)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on the card.

    Attributes:
        parameters, gradients, moments: of all values, for as long as the card trains; frozen values are parameters only.
        casts: parameters in the compute type, during a pass.
        activations: kept between forward and backward pass.
        loss: the chunk of logits and the gradients made with it, at the end of a forward pass.
        layer: one layer's activations that are computed again, and their gradients, in a backward pass.
        tables: gradients of embedding and head, at the end of a backward pass.
        step: temporaries of the optimizer.
        inputs: tokens.
    """

    parameters: int
    gradients: int
    moments: int
    casts: int
    activations: int
    loss: int
    layer: int
    tables: int
    step: int
    inputs: int

    @property
    def total(self) -> int:
        """The most at any moment."""
        forward = self.casts + self.activations + self.loss
        backward = self.activations + self.layer
        moment = max(forward, backward, self.tables, self.step)
        return self.parameters + self.gradients + self.moments + self.inputs + moment


def memory_need(
    load: CardLoad,
    inner: InnerSection,
    micro_batch: int,
    plan: CardPlan,
    *,
    has_fused_norms: bool = True,
    chunk_logits: int = CARD_LOGITS,
) -> MemoryNeed:
    """The need of training with so many sequences at a time.

    Args:
        has_fused_norms: whether the device computes a norm in one kernel, as cards do. Else it keeps the normed values too.
        chunk_logits: logits of the loss that exist at a time.
    """
    tokens, num_bytes = micro_batch * load.model.context_tokens, PRECISION_BYTES[plan.precision]
    table_bytes = VALUE_BYTES * load.model.vocab_size * load.model.dim
    is_cast = plan.precision != "fp32"
    whole_layer = _layer_bytes(load, "none", num_bytes, has_fused_norms, is_compiled=plan.is_compiled)
    kept_layer = _layer_bytes(load, plan.checkpointing, num_bytes, has_fused_norms, is_compiled=plan.is_compiled)
    cast_bytes = _frozen_cast_bytes(load, plan, num_bytes)
    inside = [spec.num_elements for spec in load.specs if layer_of(spec.name) is not None]
    layer_values = sum(inside)
    largest = max(inside, default=0)  # a stage may have the embedding or the head alone
    head_bytes = table_bytes if load.has_head else 0
    held_bytes = (
        head_bytes if load.model.is_tied and not load.frozen else 0
    )  # a tied head's gradient waits for the embedding's
    is_away = plan.offload == "all"
    again = whole_layer - kept_layer + 2 * load.layer.widest * num_bytes
    end_bytes = tokens * load.model.dim * (3 * num_bytes + (0 if has_fused_norms else 2 * VALUE_BYTES))
    return MemoryNeed(
        parameters=(_copies_bytes(load, num_bytes) if is_away else VALUE_BYTES * load.num_values) + load.frozen_bytes,
        gradients=0 if is_away else VALUE_BYTES * load.num_values,
        moments=moments_bytes(load, inner, plan) if plan.offload == "none" else 0,
        casts=_casts_bytes(load, plan, num_bytes * layer_values) if is_cast and not is_away else 0,
        activations=load.num_kept * load.num_layers * tokens * kept_layer,
        loss=(_loss_bytes(load, tokens, num_bytes, chunk_logits) + end_bytes) if load.has_head else 0,
        layer=tokens * again
        + held_bytes
        + cast_bytes
        + (
            LEAVING * num_bytes * largest
            if is_away
            else VALUE_BYTES * largest + (num_bytes * largest if is_cast else 0)
        ),
        tables=0 if load.frozen else _tables_bytes(load, table_bytes),
        step=_step_bytes(load, inner, plan),
        inputs=tokens * TOKEN_BYTES * 2,
    )


def moments_bytes(load: CardLoad, inner: InnerSection, plan: CardPlan) -> int:
    """Bytes of the optimizer's moments, wherever they lie."""
    adamw = INT8_BYTES if plan.moments == "int8" else ADAMW_BYTES
    inside = _muon_values(load.specs, inner)
    return round(adamw * (load.num_values - inside) + MUON_BYTES * inside)


def away_bytes(load: CardLoad, inner: InnerSection, offload: Offload) -> int:
    """Bytes in the machine's memory of what does not lie on the card: moments, parameters and the sums of their gradients."""
    moments = moments_bytes(load, inner, FLOAT32) if offload != "none" else 0
    return moments + (2 * VALUE_BYTES * load.num_values if offload == "all" else 0)


def _copies_bytes(load: CardLoad, num_bytes: int) -> int:
    """The copies on the card of parameters in the machine's memory: matrices of layers in the compute type."""
    narrow = sum(spec.num_elements for spec in load.specs if _is_inside(spec))
    return num_bytes * narrow + VALUE_BYTES * (load.num_values - narrow)


def _frozen_cast_bytes(load: CardLoad, plan: CardPlan, num_bytes: int) -> int:
    """Rows of a frozen matrix in the type of a product, where that is another than theirs."""
    if not load.frozen or (plan.precision == "bf16" and not load.is_cast):
        return 0
    return num_bytes * min(CAST_VALUES, max(spec.num_elements for spec in load.frozen))


def _muon_values(specs: Sequence[TensorSpec], inner: InnerSection) -> int:
    return sum(spec.num_elements for spec in specs if inner.optimizer == "muon" and _is_inside(spec))


def _is_inside(spec: TensorSpec) -> bool:
    return layer_of(spec.name) is not None and len(spec.shape) >= 2


def _casts_bytes(load: CardLoad, plan: CardPlan, all_bytes: int) -> int:
    """Each pass keeps the casts of all its layers' parameters, or one layer's at a time if it computes layers again."""
    return load.num_kept * all_bytes if plan.checkpointing == "none" else -(-all_bytes // max(1, load.num_layers))


def _layer_bytes(
    load: CardLoad, checkpointing: Checkpointing, num_bytes: int, has_fused_norms: bool, *, is_compiled: bool
) -> int:
    """Bytes a token that one layer keeps."""
    layer, dim = load.layer, load.model.dim
    match checkpointing:
        case "full":
            return num_bytes * dim
        case "selective":
            return num_bytes * (dim + layer.products) + VALUE_BYTES * layer.sums
        case "none":
            pass
    if is_compiled:
        return num_bytes * (dim + layer.compiled) + VALUE_BYTES * layer.sums
    # without one kernel for it, a norm keeps its input and the normed values in float32
    normed = 0 if has_fused_norms else layer.normed * (2 * VALUE_BYTES - num_bytes)
    return num_bytes * layer.kept + normed + VALUE_BYTES * layer.sums


def _loss_bytes(load: CardLoad, tokens: int, num_bytes: int, chunk_logits: int) -> int:
    """The chunk's logits in float32 beside those of the chunk before, in the compute type too where that is another, the gradients
    of head and stream, and the head in the compute type.
    """
    vocab, dim = load.model.vocab_size, load.model.dim
    logits = min(max(LEAST_CHUNK_TOKENS, chunk_logits // vocab), tokens) * vocab
    is_cast = num_bytes != VALUE_BYTES
    if load.frozen:
        return (
            logits * (2 * VALUE_BYTES + (2 * num_bytes if is_cast else 0)) + min(CAST_VALUES, vocab * dim) * num_bytes
        )
    head_bytes = vocab * dim * (VALUE_BYTES + (num_bytes if is_cast else 0))
    return logits * (2 * VALUE_BYTES + (2 * num_bytes if is_cast else 0)) + head_bytes


def _tables_bytes(load: CardLoad, table_bytes: int) -> int:
    """A tied table's gradients from the loss and from the tokens, and their sum; else the embedding's or the head's own."""
    if load.model.is_tied and load.has_embedding and load.has_head:
        return 3 * table_bytes
    return table_bytes if load.has_embedding or load.has_head else 0


def _step_bytes(load: CardLoad, inner: InnerSection, plan: CardPlan) -> int:
    """Muon's products, and moments that are brought to the card for one parameter at a time."""
    inside = [spec.num_elements for spec in load.specs if _is_inside(spec)]
    if inner.optimizer != "muon" or not inside:
        return ADAMW_BYTES * max(spec.num_elements for spec in load.specs) if plan.offload == "moments" else 0
    return MUON_STEP_BYTES * min(sum(inside), max(MUON_TOGETHER, *inside))


def flops_per_token(load: CardLoad) -> int:
    """Floating-point operations of forward and backward pass a token: 6 for each value that it is multiplied with, 4 for a frozen
    one, and attention over the whole context, as torchtitan and nanochat count. The embedding counts only where it is the head too.
    """
    is_lookup = load.has_embedding and not (load.model.is_tied and load.has_head)
    looked_up = sum(spec.num_elements for spec in load.specs if spec.name == EMBEDDING and is_lookup)
    attention = 12 * load.num_layers * load.model.attention_dim * load.model.attended_tokens
    frozen = sum(spec.num_elements for spec in load.frozen if spec.name != EMBEDDING or load.model.is_tied)
    return 6 * (load.num_values - looked_up) + 4 * frozen + attention
