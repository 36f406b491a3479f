"""By which embeddings documents are known where `experts.router_features` is "embeddings": those of the trunk's first values. They go
into the router's file, so what a peer goes by is rooted there.
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


def _embedding(schema: TensorSchema) -> TensorSpec:
    for spec in schema.tensors:
        if spec.name == EMBEDDING:
            return spec
    raise StorageError(f"{schema.unit} has no embeddings", f"the tensor {EMBEDDING}")
