from __future__ import annotations

import numpy as np

from averaging.codecs.integer_codes import divided, packed, rounded


def test_values_are_rounded_half_to_even() -> None:
    assert rounded(np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.6], dtype=np.float32)).tolist() == [0, 2, 2, 0, -2, 127]


def test_a_group_without_a_scale_is_zeros_and_the_values_are_left_alone() -> None:
    values = np.array([[1.0, -2.0], [3.0, 4.0]], dtype=np.float32)
    assert divided(values, np.array([0.0, 2.0], dtype=np.float32)).tolist() == [[0.0, -0.0], [1.5, 2.0]]
    assert values.tolist() == [[1.0, -2.0], [3.0, 4.0]]


def test_the_first_of_two_codes_lies_in_the_low_half() -> None:
    codes = np.array([[1, -1, 7, -7]], dtype=np.int8).view(np.uint8)
    assert packed(codes).tolist() == [[0xF1, 0x97]]
