"""By which embeddings documents are known where `experts.router_features` is "embeddings": the trunk's, of the run's first values and
later of a checkpoint. They go into the router's file, so what a peer goes by is rooted there and hangs on no checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from averaging.data.packing.document_features import Embeddings, fit_embeddings
from averaging.data.packing.document_router import DocumentRouter, refit_by, refit_router
from averaging.data.packing.document_routing import FitEmbeddings
from averaging.data.tokenizer import Tokenizer
from protocol.errors import StorageError
from protocol.run.manifest import RunConfig
from protocol.tensors.expert_schema import trunk_schema
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec


def first_embeddings(config: RunConfig, tokenizer: Tokenizer) -> FitEmbeddings:
    """Those of the values that the run begins with."""

    def fit(documents: Sequence[bytes]) -> Embeddings:
        from averaging.arithmetic.genesis import (
            genesis_anchor,  # with torch, which takes seconds that no other run needs here
        )

        schema = trunk_schema(config.model)
        own = TensorSchema(schema.unit, (_embedding(schema),))
        values_N = genesis_anchor(own, config.run.seed, schema).numpy()
        return fit_embeddings(values_N.reshape(own.tensors[0].shape), f"seed {config.run.seed}", documents, tokenizer)

    return fit


def refitted(
    router: DocumentRouter, documents: Sequence[bytes], owners: Sequence[int], checkpoint: Path | None
) -> DocumentRouter:
    """The router for these owners of documents: by the embeddings of a checkpoint's trunk where those send more of the documents to
    their owners than the router's own do. Blocks.

    Raises:
        ConfigError, StorageError: the checkpoint is gone or damaged.
    """
    by_own = refit_router(router, documents, owners)
    if router.embeddings is None or router.embeddings.tokenizer is None or checkpoint is None:
        return by_own
    if len(set(owners)) < router.num_experts:
        return by_own
    embeddings = _of_checkpoint(checkpoint, documents, router.embeddings.tokenizer)
    by_newest = refit_by(router, documents, owners, embeddings)
    return max((by_own, by_newest), key=lambda each: num_followed(each, documents, owners))


def num_followed(router: DocumentRouter, documents: Sequence[bytes], owners: Sequence[int]) -> int:
    """How many documents a router sends to their owners."""
    return sum(router.nearest(text)[0] == owner for text, owner in zip(documents, owners, strict=True))


def _of_checkpoint(path: Path, documents: Sequence[bytes], tokenizer: Tokenizer) -> Embeddings:
    from averaging.arithmetic.vectors import picked  # with torch
    from coordinator.checkpoints.checkpoints import load_checkpoint

    manifest, state = load_checkpoint(path)
    whole = TensorSchema(state.unit, tuple(TensorSpec(each.name, each.shape) for each in manifest.tensors))
    own = TensorSchema(state.unit, (_embedding(whole),))
    values_VD = picked(state.anchor_N, whole, own).numpy().reshape(own.tensors[0].shape)
    return fit_embeddings(values_VD, f"round {manifest.index}", documents, tokenizer)


def _embedding(schema: TensorSchema) -> TensorSpec:
    for spec in schema.tensors:
        if spec.name == "embed.weight":
            return spec
    raise StorageError(f"{schema.unit} has no embeddings", "the tensor embed.weight")
