from __future__ import annotations

import math
from itertools import pairwise

import pytest

from peer.training.optimizers.learning_rate import learning_rate_at
from protocol.run.training_sections import InnerSection


def test_the_rate_warms_up_stays_and_decays_to_a_tenth_by_the_runs_tokens() -> None:
    inner = InnerSection(learning_rate=0.01, warmup_tokens=100, decay_fraction=0.2, batch_tokens=1)
    rates = [learning_rate_at(inner, 1000, tokens) for tokens in range(1100)]
    assert 0 < rates[0] < rates[50] < rates[99] < 0.01
    assert rates[100:801] == [0.01] * 701
    assert all(later <= earlier for earlier, later in pairwise(rates[800:]))
    assert rates[850] == pytest.approx(0.01 * (1 - math.sqrt(0.25)))
    assert rates[1000:] == pytest.approx([0.001] * 100)


def test_a_run_without_warm_up_or_decay_has_one_rate() -> None:
    inner = InnerSection(learning_rate=0.01, warmup_tokens=0, decay_fraction=0.0, batch_tokens=1)
    assert {learning_rate_at(inner, 1000, tokens) for tokens in (0, 500, 1000, 2000)} == {0.01}
