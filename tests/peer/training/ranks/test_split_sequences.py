from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as distributed
from torch import nn

from peer.training.plan.layout import Mesh
from peer.training.ranks.split_sequences import RING_TOKENS, is_ring, split_sequences
from protocol.errors import LocalProtocolError
from tests.peer.training.ranks.split_checks import errors_of, made

NEAR = 1e-5


def test_gradients_of_two_ranks_that_share_sequences_are_those_of_one_process(short_path: Path) -> None:
    errors = errors_of(
        short_path,
        2,
        "untied shard=2 context=2 selective",
        "expert shard=2 context=2",
        "tied shard=2 context=2 rows",
        "expert shard=2 context=2 rows full",
    )
    assert max(errors) <= NEAR


def test_gradients_of_four_ranks_in_one_group_or_in_two_are_those_of_one_process(short_path: Path) -> None:
    errors = errors_of(
        short_path,
        4,
        "untied shard=4 context=4 rows full",
        "tied shard=4 context=2 rows selective",
    )
    assert max(errors) <= NEAR


def test_a_context_that_cannot_be_shared_is_refused_with_the_reason() -> None:
    model, _ = made("tied")
    with pytest.raises(LocalProtocolError, match="a context of 48 tokens is not a multiple of 10"):
        split_sequences(model, Mesh(shard=5, context=5), 0, _no_group())


def test_a_layer_whose_attention_cannot_be_replaced_is_refused() -> None:
    model, _ = made("tied")
    model.layers = nn.ModuleList([nn.Identity()])
    with pytest.raises(LocalProtocolError, match="a layer Identity without replaceable attention"):
        split_sequences(model, Mesh(shard=2, context=2), 0, _no_group())


@pytest.mark.parametrize(
    ("device", "tokens", "goes_around"),
    [("cuda", RING_TOKENS, True), ("cuda", RING_TOKENS - 1, False), ("cpu", RING_TOKENS, False)],
)
def test_keys_go_around_on_cards_where_a_rank_has_many_tokens(device: str, tokens: int, goes_around: bool) -> None:
    assert is_ring(device, tokens) == goes_around


def _no_group() -> distributed.ProcessGroup:
    """Of this process alone, without any torch.distributed."""
    return distributed.ProcessGroup(0, 1)
