from __future__ import annotations

import torch

from averaging.arithmetic.vectors import new_vector


def test_a_new_vector_is_float32_on_the_cpu_and_its_owners_own() -> None:
    vector_N, other_N = new_vector(1000), new_vector(1000)
    assert (vector_N.shape, vector_N.dtype, vector_N.device.type) == ((1000,), torch.float32, "cpu")
    vector_N.fill_(1.0)
    other_N.fill_(2.0)
    assert bool((vector_N == 1.0).all())


def test_a_long_vector_takes_the_place_of_one_that_is_gone_and_of_no_other() -> None:
    first_N, kept_N = new_vector(1 << 21), new_vector(1 << 21)
    kept_N.fill_(1.0)
    place = first_N.data_ptr()
    del first_N
    second_N, third_N = new_vector(1 << 21), new_vector(1 << 21)
    second_N.fill_(2.0)
    third_N.fill_(3.0)
    assert second_N.data_ptr() == place
    assert bool((kept_N == 1.0).all())
