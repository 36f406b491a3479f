"""By which embeddings documents are known: those of the run's first values."""

from __future__ import annotations

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.packing.document_features import fit_embeddings
from averaging.data.tokenizer import ByteTokenizer
from coordinator.run.routing_embeddings import first_embeddings
from protocol.run.manifest import parse_run_config
from protocol.tensors.expert_schema import held_units
from tests.averaging.data.packing.test_document_routing import CODE, PROSE
from tests.protocol.run.test_experts_section import expert_toml

DOCUMENTS = [text for pair in zip(CODE, PROSE, strict=True) for text in pair]


def test_the_first_embeddings_are_those_that_every_peer_begins_with() -> None:
    config = parse_run_config(expert_toml())
    found = first_embeddings(config, ByteTokenizer())(DOCUMENTS)
    assert config.mixture is not None
    whole = held_units(config.model, config.mixture, range(2)).whole
    values_N = genesis_anchor(whole, config.run.seed)[: 257 * config.model.dim]
    expected = fit_embeddings(values_N.numpy().reshape(257, -1), "seed 1", DOCUMENTS, ByteTokenizer())
    assert (found.table_VF == expected.table_VF).all()
    assert found.origin == f"seed {config.run.seed}"
