from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.squared_norm import left_out, lost_ppm, squared_norm
from protocol.rounds.messages.bounds import LOST_ALL_PPM


def test_energies_are_sums_of_squares_of_any_length() -> None:
    assert squared_norm(torch.zeros(0)) == 0.0
    for length in (1, 2, 3, 1000):
        values_n = torch.arange(1, length + 1, dtype=torch.float32)
        assert squared_norm(values_n) == sum(number**2 for number in range(1, length + 1))


def test_what_is_written_as_zero_is_left_out_and_what_was_zero_before_is_not() -> None:
    values_n = torch.tensor([0.0, 3.0, -4.0, 0.0, 12.0])
    assert left_out(values_n, torch.tensor([0.0, 3.5, 0.0, 0.0, 11.0])) == (16.0, 169.0)
    assert left_out(values_n, torch.zeros(5)) == (169.0, 169.0)
    assert left_out(torch.zeros(5), torch.zeros(5)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("lost", "energy", "expected"),
    [(0.0, 0.0, 0), (0.0, 5.0, 0), (1.0, 4.0, 250_000), (1e-30, 1.0, 1), (4.0, 4.0, LOST_ALL_PPM)],
)
def test_millionths_are_rounded_up_so_that_none_means_none(lost: float, energy: float, expected: int) -> None:
    assert lost_ppm(lost, energy) == expected
