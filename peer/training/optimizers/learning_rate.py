"""The learning rate of a step, by the run's tokens."""

from __future__ import annotations

import math
from typing import Final

from protocol.run.training_sections import InnerSection

MIN_LEARNING_RATE_SHARE: Final = 0.1


def learning_rate_at(inner: InnerSection, total_tokens: int, tokens: int) -> float:
    """Warm-up, stable, then 1 - sqrt decay to a tenth over the last `decay_fraction` (WSD as in INTELLECT-1, 2412.01152).

    Indexed by the run's tokens, so that a joining peer has the same rate as the others.
    """
    if tokens < inner.warmup_tokens:
        return inner.learning_rate * (tokens + 1) / (inner.warmup_tokens + 1)
    decay_begins = total_tokens * (1.0 - inner.decay_fraction)
    if tokens <= decay_begins or inner.decay_fraction == 0.0:
        return inner.learning_rate
    progress = min(1.0, (tokens - decay_begins) / (total_tokens - decay_begins))
    return inner.learning_rate * max(MIN_LEARNING_RATE_SHARE, 1.0 - math.sqrt(progress))
