"""Embeddings for routing documents when `experts.router_features` is "embeddings": those of the trunk's initial values. They become
part of the router's file, so the run's root covers them.
"""

from __future__ import annotations

from collections.abc import Sequence

from averaging.data.packing.document_features import Embeddings, fit_embeddings
from averaging.data.packing.document_routing import FitEmbeddings
from averaging.data.tokenizer import Tokenizer
from protocol.errors import StorageError
from protocol.run.manifest import RunConfig
from protocol.tensors.expert_schema import trunk_schema
from protocol.tensors.model_config import EMBEDDING
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec


def first_embeddings(config: RunConfig, tokenizer: Tokenizer) -> FitEmbeddings:
    """The embeddings among the run's initial values."""

    def fit(documents: Sequence[bytes]) -> Embeddings:
        from averaging.arithmetic.genesis import (
            genesis_anchor,  # imports torch, which other runs do not need here
        )

        schema = trunk_schema(config.model)
        own = TensorSchema(schema.unit, (_embedding(schema),))
        values_N = genesis_anchor(own, config.run.seed, schema).numpy()
        return fit_embeddings(values_N.reshape(own.tensors[0].shape), f"seed {config.run.seed}", documents, tokenizer)

    return fit


def _embedding(schema: TensorSchema) -> TensorSpec:
    for spec in schema.tensors:
        if spec.name == EMBEDDING:
            return spec
    raise StorageError(f"{schema.unit} has no embeddings", f"the tensor {EMBEDDING}")
