from __future__ import annotations

import numpy as np
import pytest
import torch

from averaging.arithmetic import gram as gram_module
from averaging.arithmetic.gram import gram


@pytest.mark.parametrize("length", [1, 8, 13, 1000])
def test_products_are_those_of_float64_and_each_pair_has_one(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_mn = torch.randn(5, length, generator=torch.Generator().manual_seed(length))
    wide = rows_mn.numpy().astype(np.float64)
    found = gram(rows_mn)
    np.testing.assert_allclose(found, wide @ wide.T, rtol=1e-12, atol=1e-12)
    assert np.array_equal(found, found.T)
    monkeypatch.setattr(gram_module, "BLOCKS", None)
    assert gram(rows_mn).tobytes() == found.tobytes()


def test_the_largest_values_that_a_delta_may_have_give_finite_products() -> None:
    assert np.isfinite(gram(torch.full((3, 1 << 12), 1e18))).all()
