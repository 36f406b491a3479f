from __future__ import annotations

import torch

from averaging.vectors import new_vector


def test_a_new_vector_is_float32_on_the_cpu_and_its_owners_own() -> None:
    vector_N, other_N = new_vector(1000), new_vector(1000)
    assert (vector_N.shape, vector_N.dtype, vector_N.device.type) == ((1000,), torch.float32, "cpu")
    vector_N.fill_(1.0)
    other_N.fill_(2.0)
    assert bool((vector_N == 1.0).all())
