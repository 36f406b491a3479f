from __future__ import annotations

import pytest
import torch

from peer.training.replica.exchange_values import PIECE_VALUES, exchange_piece, exchange_values


@pytest.mark.parametrize(
    ("shape", "num_piece"),
    [((), 4), ((7,), 7), ((7,), 2), ((5, 3), 4), ((5, 3), 2), ((3, 4, 5), 6), ((0, 3), 2), ((2, PIECE_VALUES), None)],
)
def test_tensors_exchange_their_values_in_place_whatever_the_piece_holds(
    shape: tuple[int, ...], num_piece: int | None
) -> None:
    one, other = torch.randn(shape), torch.randn(shape)
    before, other_before = one.clone(), other.clone()
    exchange_values(one, other, exchange_piece() if num_piece is None else torch.empty(num_piece))
    assert torch.equal(one, other_before)
    assert torch.equal(other, before)


def test_tensors_that_are_not_contiguous_exchange_their_values_too() -> None:
    one, other = torch.arange(12.0).view(3, 4).T, -torch.arange(12.0).view(4, 3)
    before = one.clone()
    exchange_values(one, other, torch.empty(5))
    assert torch.equal(other, before)
    assert torch.equal(one, -torch.arange(12.0).view(4, 3))
