from __future__ import annotations

from itertools import pairwise
from math import log

import pytest

from peer.forecast.shapes_core import Numbers, ladder, run_of, shape_from, shape_of
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    "num_values", [1_000_000, 30_000_000, 124_000_000, 1_300_000_000, 7_000_000_000, 70_000_000_000]
)
def test_a_shape_has_about_the_wished_size_and_its_own_count_is_the_models(num_values: int) -> None:
    vocab = 257 if num_values < 10_000_000 else 32_768
    shape = shape_of(num_values, vocab)
    assert abs(log(shape.num_values(vocab) / num_values)) < 0.1
    run = run_of(shape, 1_000_000, Numbers(vocab_size=vocab))
    assert run.num_elements == shape.num_values(vocab)


def test_sizes_of_the_ladder_grow_evenly() -> None:
    assert ladder()[0] == 1_000_000
    assert ladder()[-1] == 100_000_000_000
    assert all(after / before == pytest.approx(10**0.1, rel=1e-3) for before, after in pairwise(ladder()))


@pytest.mark.parametrize(("num_values", "vocab"), [(0, 257), (10**13, 257), (1_000_000, 32_768), (200_000, 128_000)])
def test_a_size_that_no_shape_has_is_one_line(num_values: int, vocab: int) -> None:
    with pytest.raises(ConfigError) as caught:
        shape_of(num_values, vocab)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "numbers",
    [
        Numbers(codec="int3"),
        Numbers(batch_tokens=1000),
        Numbers(context_tokens=0),
        Numbers(vocab_size=0),
        Numbers(local_steps=-3),
        Numbers(batch_tokens=0),
    ],
)
def test_numbers_that_no_run_may_have_are_one_line(numbers: Numbers) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(shape_from(512, 8, is_tied=True), 1_000_000, numbers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("dim", "layers"), [(1, 1), (10_000_000, 2), (512, 100_000), (63, 2)])
def test_a_width_or_depth_that_no_run_may_have_is_one_line(dim: int, layers: int) -> None:
    with pytest.raises(ConfigError):
        run_of(shape_from(dim, layers, is_tied=False), 1_000_000, Numbers())
