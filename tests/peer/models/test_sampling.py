from __future__ import annotations

import pytest

from peer.models.sampling import MAX_TOKENS, Sampling, threads_for
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ({"num_tokens": 0}, "tokens is 0"),
        ({"num_tokens": MAX_TOKENS + 1}, "tokens is"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top-k is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 63}, "seed is"),
    ],
)
def test_number_that_cannot_work_is_named(numbers: dict[str, float], found: str) -> None:
    values = {"num_tokens": 5, **numbers}
    with pytest.raises(ConfigError, match=found):
        Sampling(**values)  # type: ignore[arg-type]


def test_small_model_is_sampled_with_one_thread_and_a_large_one_with_all_cores() -> None:
    assert [threads_for(size, 16) for size in (1, 770_000, 15_999_999, 40_000_000, 10**10)] == [1, 1, 1, 5, 16]
    assert threads_for(10**10, 1) == 1
