from __future__ import annotations

from pathlib import Path

from tests.peer.training.ranks.split_checks import errors_of

NEAR = 1e-5


def test_gradients_of_two_ranks_that_share_layers_are_those_of_one_process(short_path: Path) -> None:
    errors = errors_of(short_path, 2, "tied tensor=2", "untied tensor=2 selective", "expert tensor=2 full")
    assert max(errors) <= NEAR


def test_gradients_of_four_ranks_that_share_layers_and_rows_or_sequences_are_those_of_one_process(
    short_path: Path,
) -> None:
    errors = errors_of(
        short_path,
        4,
        "expert shard=2 context=2 tensor=2 rows",
        "untied shard=2 context=2 tensor=2 full",
    )
    assert max(errors) <= NEAR
