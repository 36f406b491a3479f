"""By which embeddings documents are known: the run's first values, later a checkpoint's where those follow the losses better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.packing.document_features import fit_embeddings
from averaging.data.packing.document_router import DocumentRouter, fit_router
from averaging.data.tokenizer import ByteTokenizer
from coordinator.run.routing_embeddings import first_embeddings, num_followed, refitted
from protocol.errors import ConfigError
from protocol.run.manifest import parse_run_config
from protocol.tensors.expert_schema import held_units
from tests.averaging.data.packing.test_document_routing import CODE, PROSE
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of_experts, decoder
from tests.protocol.run.test_experts_section import expert_toml

DOCUMENTS = [text for pair in zip(CODE, PROSE, strict=True) for text in pair]
BY_KIND = [0, 1] * len(CODE)


def _telling_one_letter() -> DocumentRouter:
    """By embeddings that are the same for all letters but one, which nothing hangs on."""
    values_VD = np.zeros((257, 16))
    values_VD[ord("7"), 0] = 1.0
    embeddings = fit_embeddings(values_VD, "seed 1", DOCUMENTS, ByteTokenizer())
    return fit_router(DOCUMENTS, 2, overlap=0.25, embeddings=embeddings)


def test_the_first_embeddings_are_those_that_every_peer_begins_with() -> None:
    config = parse_run_config(expert_toml())
    found = first_embeddings(config, ByteTokenizer())(DOCUMENTS)
    assert config.mixture is not None
    whole = held_units(config.model, config.mixture, range(2)).whole
    values_N = genesis_anchor(whole, config.run.seed)[: 257 * config.model.dim]
    expected = fit_embeddings(values_N.numpy().reshape(257, -1), "seed 1", DOCUMENTS, ByteTokenizer())
    assert (found.table_VF == expected.table_VF).all()
    assert found.origin == f"seed {config.run.seed}"


def test_a_checkpoints_embeddings_are_taken_where_they_follow_the_losses_better(tmp_path: Path) -> None:
    router = _telling_one_letter()
    checkpoint = checkpoint_of_experts(tmp_path, decoder(vocab_size=257))
    by_newest = refitted(router, DOCUMENTS, BY_KIND, checkpoint)
    by_own = refitted(router, DOCUMENTS, BY_KIND, None)
    assert by_newest.embeddings is not None
    assert by_own.embeddings is not None
    assert (by_newest.embeddings.origin, by_own.embeddings.origin) == ("round 3", "seed 1")
    assert num_followed(by_newest, DOCUMENTS, BY_KIND) > num_followed(by_own, DOCUMENTS, BY_KIND)
    again = refitted(by_newest, DOCUMENTS, BY_KIND, checkpoint)
    assert again.to_bytes() == by_newest.to_bytes()


def test_a_router_of_runs_of_bytes_and_owners_of_one_expert_alone_ask_for_no_checkpoint(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert refitted(fit_router(DOCUMENTS, 2), DOCUMENTS, BY_KIND, gone).embeddings is None
    lone = refitted(_telling_one_letter(), DOCUMENTS, [0] * len(DOCUMENTS), gone)
    assert lone.embeddings is not None
    assert lone.embeddings.origin == "seed 1"


def test_a_checkpoint_that_is_gone_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        refitted(_telling_one_letter(), DOCUMENTS, BY_KIND, tmp_path / "gone")
    assert "\n" not in caught.value.one_line()
