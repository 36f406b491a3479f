from __future__ import annotations

from pathlib import Path

from tests.peer.training.ranks.split_checks import errors_of

NEAR = 1e-5


def test_gradients_of_two_ranks_that_share_layers_are_those_of_one_process(short_path: Path) -> None:
    cases = (
        "tied tensor=2",
        "untied tensor=2 selective",
        "expert tensor=2 full",
        "qwen2 tensor=2",
        "qwen3 tensor=2 full",
    )
    errors = errors_of(short_path, 2, *cases)
    assert max(errors) <= NEAR


def test_gradients_of_four_ranks_that_share_layers_and_rows_or_sequences_are_those_of_one_process(
    short_path: Path,
) -> None:
    errors = errors_of(
        short_path,
        4,
        "expert shard=2 context=2 tensor=2 rows",
        "untied shard=2 context=2 tensor=2 full",
        "qwen3 shard=2 context=2 tensor=2 rows",
        "olmo2 shard=4 context=2 rows",
    )
    assert max(errors) <= NEAR
